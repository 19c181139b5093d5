"""Settings of the documentation: `make docs` builds it with Sphinx."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hvd_keras

project = "hvd_keras"
author = "The hvd_keras developers"
release = version = hvd_keras.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

# Pages are Markdown with links as GitHub makes them.
myst_heading_anchors = 3

# Docstrings are in Google's form; `x` is code.
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": True}
napoleon_custom_sections = [("Example", "notes"), ("Returns", "params_style")]
napoleon_use_rtype = False
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"hvd_keras {release}"
html_copy_source = False
# Search fetches excerpts of pages, which a browser refuses for files.
html_show_search_summary = False
# Nothing is fetched from elsewhere.
html_theme_options = {"top_of_page_buttons": []}
