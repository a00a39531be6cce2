"""HTML report of one run or two, in a single file: curves, accuracy per skill, and every transcript.

A run's files may be incomplete, so an unreadable part is noted instead of raising an error:

```
episodes.jsonl, tasks.jsonl, metrics.jsonl, run.json
  run.py          read_run       the readable parts, with notes on the others
  curves.py       charts         curves as plain numbers
                  compare        accuracy per skill, before and after
  page.py         write_report   curves, facts and every transcript of one run or two, as HTML
  figures.py      write_figures  the same numbers, as PNG
```

In `templates/`, all pages share `page.html.j2` (with its style and `page.js.j2`) and `macros.html.j2`. Pages
whose HTML lists tasks filter them with `entries.js.j2`.

All curves share an x-axis: the number of updates before the episodes were played. A value that the trainer
logs at step s comes from episodes played after s - 1 updates, so it is drawn there.

Text written by an agent is untrusted. Jinja escapes what it renders; transcripts are embedded as gzipped
blocks, which the page's script unpacks on demand and shows as text nodes. A content security policy allows
only that script, by its hash, and no requests.
"""
