"""The end of a run of these tests."""


def pytest_terminal_summary(terminalreporter):
    """Print what tests have told as lines of a table, those of other workers too."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    lines = {
        line
        for report in reports
        for name, line in getattr(report, "user_properties", ())
        if name == "table"
    }
    if lines:
        terminalreporter.section("compiled for GPUs that are not here")
        terminalreporter.write("\n".join(sorted(lines)) + "\n")
