"""Code that generates parts of the documentation site. `mkdocs.yml` loads `hooks.py`."""
