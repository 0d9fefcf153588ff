"""The plugin is loaded here, so that the suite runs from a plain checkout too."""

pytest_plugins = ["verify.plugin", "verify.bench.plugin"]


def pytest_terminal_summary(terminalreporter):
    """Print what tests have told as lines of a table, those of other workers too."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    lines = {line for report in reports for name, line in getattr(report, "user_properties", ()) if name == "table"}
    if lines:
        terminalreporter.section("compiled for GPUs that are not here")
        terminalreporter.write("\n".join(sorted(lines)) + "\n")
