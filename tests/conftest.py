"""The plugin is loaded here, so that the suite runs from a plain checkout too."""

pytest_plugins = ["verify.plugin", "verify.bench.plugin"]
