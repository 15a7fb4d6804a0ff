"""Pictures of a report: one page of HTML, single SVGs, matplotlib figures.

    Report ─► panels, rows, amounts ─► draw_* ─► page
              facts as dataclasses      SVG       HTML

Nothing here is imported before a picture is asked for.
"""
