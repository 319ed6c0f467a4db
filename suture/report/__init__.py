"""What people see of runs: tables, curves and progress in a terminal, pages and pictures. Nothing here computes a result.

How pages are made, from run folders to a file:

    gathered = gather([Path("runs/mine")])         gathering: run folders, whatever state they are in -> records
    figure = curves.learning(gathered)             figures/: records -> Figure, a Vega-Lite spec with its tables and words
    drawing.write_picture(figure, Path("a.svg"))   drawing: a figure as SVG, PNG or PDF
    sheet = results.final(gathered)                results: records -> Sheet; sheets writes it as text, md, csv, LaTeX, HTML
    page = report_page(gathered)                   report: which sections there are
    page.written(page)                             page: one self-contained file, with assets/report.js and style.css

Another page, such as one that is served, uses the same parts: `page.settings()` in a script element called `settings`,
`drawing.script()` and `page.asset("report.js")` as scripts, `page.asset("style.css")`, `page.bar(methods)`, and
`page.shown_figure(figure)`, which report.js draws when it comes into view. To draw a figure again with newer data:
`Suture.place(element, figure)` with what `page.as_json(figure)` sent. Colours are those of `theme`; texts of run folders get
into HTML by `html.el` alone, which escapes them, and into figures as data.
"""
