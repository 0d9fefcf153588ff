"""
The book: `sphinx-build -W docs build/docs`, without network. Its text comes from spec/, its numbers
from code that runs in the build.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / "_ext")]

from attnverify import __version__  # noqa: E402
from attnverify.faults.registry import read_faults  # noqa: E402
from tests.attnverify.faults.controls.registry import read_controls  # noqa: E402

project = "Attention, verified"
author = "the attnverify contributors"
version = release = __version__
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "matplotlib.sphinxext.plot_directive",
    "book",
]
FAULTS, CONTROLS = read_faults(), read_controls()
PUBLIC = [fault for fault in FAULTS.values() if fault.source != "this project"]
rst_epilog = f"""
.. |faults| replace:: {len(FAULTS)}
.. |controls| replace:: {len(CONTROLS)}
.. |public_faults| replace:: {len(PUBLIC)}
"""

exclude_patterns = ["worked_examples", "_ext"]
nitpicky = True
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(jaxtyping|numpy|np|collections|typing)\..*|ndarray|Bool|Float|Mask|Keep|Visible|Mems|Parameters|H|N|M|.*\.Visibility",
    )
]

autodoc_typehints_format = "short"
toc_object_entries = False
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
maximum_signature_line_length = 80

doctest_global_setup = "import numpy as np\nfrom attnverify.spec import *"

mathjax_path = "vendor/mathjax/tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}}

plot_include_source = False
plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = ["svg"]
plot_pre_code = ""
plot_template = """
{% for img in images %}
.. figure:: {{ build_dir }}/{{ img.basename }}.{{ default_fmt }}
   {{ ":alt:" if loop.index0 else options | join("\n   ") }}

{% endfor %}
"""  # what is to be seen is said once, by the first of several drawings

html_theme = "furo"
html_title = "Attention, verified"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
