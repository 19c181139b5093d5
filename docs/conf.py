"""Settings of the documentation: `make docs` builds it with Sphinx."""

from __future__ import annotations

import json
import os
import pathlib
from importlib.util import find_spec

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from docutils import nodes
from sphinx.application import Sphinx

import hvd_keras
from hvd_keras._common import replacements

project = "hvd_keras"
author = "The hvd_keras developers"
release = version = hvd_keras.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]

# Pages are Markdown with links as GitHub makes them.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

# Docstrings are in Google's form; `x` is code.
default_role = "code"
# Neither need be there. In what takes their place, nothing is replaced.
autodoc_mock_imports = [n for n in ("jax", "torch") if find_spec(n) is None]
if autodoc_mock_imports:
    replacements.replace = lambda *_: None
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": True}
napoleon_custom_sections = [("Example", "notes")]
napoleon_use_rtype = False
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"hvd_keras {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_search_scorer = str(pathlib.Path(__file__).with_name("scorer.js"))
html_favicon = "_static/favicon.svg"
html_use_index = False
highlight_language = "text"
pygments_dark_style = "github-dark"
# Nothing is fetched from elsewhere.
html_theme_options = {"top_of_page_buttons": []}


# ---- Links to Keras and TensorFlow, whose sites have no inventory ----

_TENSORFLOW = "https://www.tensorflow.org/api_docs/python/tf/"


def _page_of(name: str) -> str | None:
    """Returns the address of a class that is documented there."""
    if name.startswith("keras.src."):  # folders, the file, the class
        *folders, _, name = name.split(".")[2:]
        name = ".".join(["keras", *folders, name])
    if not name.startswith(("keras.", "tf.")):
        return None
    path = name.removeprefix("tf.").replace("models.Model", "Model")
    return _TENSORFLOW + path.replace(".", "/")


def _link_elsewhere(
    app: Sphinx, env: object, node: nodes.Element, text: nodes.Element
) -> nodes.reference | None:
    page = _page_of(node.get("reftarget", ""))
    return nodes.reference("", "", text, refuri=page) if page else None


# ---- Of the bases of a class, those that users know ----


def _keep_known_bases(
    app: Sphinx, name: str, made: type, options: object, bases: list[type]
) -> None:
    """Puts the next base of another package in the place of an inner one."""
    known = [
        next(one for one in base.__mro__ if _is_known(one)) for base in bases
    ]
    bases[:] = [one for one in dict.fromkeys(known) if one is not object]


def _is_known(base: type) -> bool:
    modules = hvd_keras, hvd_keras.callbacks, hvd_keras.exceptions
    is_own = base.__module__.startswith("hvd_keras")
    return not is_own or any(
        getattr(module, base.__name__, None) is base for module in modules
    )


def _drop_empty_bases(app: Sphinx, tree: nodes.document) -> None:
    for paragraph in list(tree.findall(nodes.paragraph)):
        if paragraph.astext().strip() == "Bases:":
            paragraph.parent.remove(paragraph)


# ---- The notebook as a page ----


def _read_notebook(app: Sphinx, page: str, source: list[str]) -> None:
    if page != "notebook":
        return
    path = pathlib.Path(app.srcdir).parent / "examples/notebook.ipynb"
    cells = json.loads(path.read_text())["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    source[0] += "".join(
        f"\n```python\n{text}\n```\n" if kind == "code" else f"\n{text}\n"
        for kind, text in texts
    ).replace("\n# ", "\n## ")


def setup(app: Sphinx) -> None:
    """Adds these to Sphinx."""
    app.connect("autodoc-process-bases", _keep_known_bases)
    app.connect("doctree-read", _drop_empty_bases)
    app.connect("missing-reference", _link_elsewhere)
    app.connect("source-read", _read_notebook)
