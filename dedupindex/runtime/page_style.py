"""The style of pages of reports, and the policy (CSP) that allows it and nothing else."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

_LIGHT = """
  --ground: #f6f7f9; --paper: #fff; --line: #d4d9df; --text: #1a1d21; --quiet: #535b65;
  --rest: #e3e7ec; --grey: #6f7a85; --blue: #1f6fb5; --orange: #b35c00; --violet: #6b4fa0;
  --red: #a8201a; --green: #1b6b3a; --shade: #8a94a0;
"""
_DARK = """
  --ground: #121518; --paper: #1b1f24; --line: #363d46; --text: #e8eaed; --quiet: #aab2bc;
  --rest: #2c323a; --grey: #8b95a0; --blue: #5aa9ec; --orange: #f0a04b; --violet: #b9a1ec;
  --red: #ff9d97; --green: #86d9a4; --shade: #000;
"""
_RULES = """
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100% }
body {
  max-width: 74rem; margin: 0 auto; padding: 1rem; background: var(--ground); color: var(--text);
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1, h2, p, figure { overflow-wrap: anywhere }
h1 { margin: .5rem 0 0; color: var(--quiet); font-size: 1.1rem; font-weight: 500 }
h2 { margin: 2rem 0 .5rem; font-size: 1.2rem }
p { max-width: 52rem }
.headline { margin: .25rem 0 1rem; font-size: 1.6rem; font-weight: 600; line-height: 1.25 }
dt, .note, caption, thead th, .legend { color: var(--quiet); font-size: .875rem }
.cards dd, table, .value { font-variant-numeric: tabular-nums }
.cards, .facts { display: grid; margin: 1rem 0 }
.cards { grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem }
.cards div, figure, .box {
  background: var(--paper); border: 1px solid var(--line); border-radius: 6px;
}
.cards div { padding: .6rem .75rem }
.cards dd { margin: 0; font-size: 1.4rem; font-weight: 600; line-height: 1.3 }
.cards .note { font-size: .875rem; font-weight: 400; line-height: 1.5 }
.facts { grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)) }
.facts { gap: .4rem 1.5rem }
.facts dd { margin: 0; overflow-wrap: anywhere }
figure { margin: 1rem 0; padding: .6rem 1rem }
figure > svg { display: block; margin: .5rem 0; border-radius: 3px }
figcaption { font-weight: 600 }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.25rem; margin: .25rem 0; padding: 0 }
.legend, .ranking { list-style: none }
.key { margin-right: .3rem; vertical-align: -.05rem }
.ranking { margin: .5rem 0; padding: 0 }
.ranking li { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 0 1rem }
.ranking li { margin: .4rem 0 }
.ranking svg { grid-column: 1 / -1; border-radius: 3px }
.axis { display: flex; justify-content: space-between; max-width: none; margin: 0 }
.box { width: fit-content; min-width: min(30rem, 100%); max-width: 100%; margin: 1rem 0 }
.box { overflow-x: auto }
.box { /* a shadow at each side where there is more; the ground moves along and covers it */
  background:
    linear-gradient(to right, var(--paper) 40%, transparent) 0 0 / 3rem 100% no-repeat local,
    linear-gradient(to left, var(--paper) 40%, transparent) 100% 0 / 3rem 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) 0 0 / 1.25rem 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) 100% 0 / 1.25rem 100% no-repeat scroll,
    var(--paper);
}
table { width: 100%; border-collapse: collapse }
caption { padding: .5rem .75rem; text-align: left }
th, td { padding: .35rem .6rem; border-top: 1px solid var(--line); text-align: left }
th, td { vertical-align: top; font-weight: 400; overflow-wrap: break-word }
thead th { border-top: 0; font-weight: 600; vertical-align: bottom }
tbody th { min-width: 10rem; max-width: 30rem; font-weight: 500; overflow-wrap: anywhere }
td:last-child:not(.n) { min-width: 12rem; overflow-wrap: anywhere }
th.n, td.n { text-align: right }
td.n { white-space: nowrap }
footer { margin-top: 2rem; color: var(--quiet); font-size: .875rem }
:focus-visible { outline: 3px solid var(--blue); outline-offset: 2px }
.exact_url, .kept, .same { fill: var(--blue) }
.canonical_url, .covered, .loss, .changed { fill: var(--orange) }
.digest, .broken, .gone { fill: var(--violet) }
.new, .remark { fill: var(--grey) }
.damage { fill: var(--red) }
.saved { fill: var(--green) }
.rest { fill: var(--rest) }
.over { fill: transparent }
.graph { max-width: 960px; height: auto }
.graph text { font: 12px system-ui, sans-serif; fill: var(--text) }
.graph text { paint-order: stroke; stroke: var(--paper); stroke-width: 4px }
.graph .lane { stroke: var(--line) }
.graph .pair { fill: none; stroke: var(--grey) }
.graph .covers { fill: none; stroke: var(--orange); stroke-width: 1.6 }
.graph .head { fill: var(--orange) }
.graph circle.covered { fill: var(--paper); stroke: var(--orange); stroke-width: 2 }
@media (max-width: 40rem) {
  body { padding: .75rem }
  .minor { display: none }
  .headline { font-size: 1.35rem }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .5rem }
  .cards dd { font-size: 1.2rem }
  caption { max-width: calc(100vw - 1.5rem) } /* of the screen, not of a table that scrolls */
  th, td { padding: .3rem .4rem }
  tbody th { min-width: 8.5rem }
  .ranking li { grid-template-columns: minmax(0, 1fr) }
}
@media (forced-colors: active) { rect { forced-color-adjust: none } }
"""
_PRINT = """
  body { max-width: none; font-size: .85rem; print-color-adjust: exact }
  .box { overflow: visible }
  .cards div, figure, tr { break-inside: avoid }
"""
STYLE = (
    f":root {{ color-scheme: light dark; {_LIGHT}}}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK}}} }}\n{_RULES}"
    f"@media print {{ :root {{ color-scheme: light; {_LIGHT} --ground: #fff }}\n{_PRINT}}}\n"
)
POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"
)
