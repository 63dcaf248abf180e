"""The commands of ``afd-qfirst``; each module offers ``add_parser`` and ``run``, and imports torch
only when it runs."""
