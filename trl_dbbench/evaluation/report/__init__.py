"""One HTML file of a run, or of two: curves, accuracy per skill, and every transcript, to be opened anywhere.

What a run leaves behind may be half of it, so reading never fails on a part:

```
episodes.jsonl, tasks.jsonl, metrics.jsonl, run.json
  run.py          read_run       what is readable, with a note on what is not
  curves.py       charts         curves as plain numbers
                  compare        accuracy per skill, before and after
  page.py         write_report   these, facts and every transcript, of one run or of two, as HTML
  figures.py      write_figures  the same numbers, as PNG
```

Of `templates/`, all pages share `page.html.j2` (with its style and `page.js.j2`) and `macros.html.j2`. Pages
whose tasks stand in the HTML filter them by `entries.js.j2`.

All curves have one x: the updates done when the episodes were played. A figure that the trainer logged at
step s is of episodes played after s - 1 updates and stands there.

What an agent wrote is a stranger's text. Jinja escapes what it renders; the transcripts lie in the page as
gzipped blocks that its script unpacks when one is looked at, and shows as text nodes. A content security
policy allows that one script, by its hash, and no request at all.
"""
