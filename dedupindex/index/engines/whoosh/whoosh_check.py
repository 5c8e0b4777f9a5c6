"""Reading a whole Whoosh index back: is what is stored what was written?"""

from __future__ import annotations

from dedupindex.errors import Damaged
from dedupindex.index.engines.whoosh.whoosh_view import WhooshView
from dedupindex.index.format.cells import answers, digest_of_key, digest_prefix, is_sound, unsealed
from dedupindex.index.load.merge_rule import checksum


def problems(view: WhooshView) -> list[str]:
    """What is wrong with the documents, in sentences; files are checked by the engine."""
    wrong: list[str] = []
    keys, captures, total, digests, last = view.snapshot.keys, 0, 0, 0, b""
    for key in view.snapshot.keys_from(b""):
        for _, stored in view.snapshot.stored("key", key):
            if not is_sound(b"", stored):
                wrong.append(f"the entry under {key.hex()} is damaged")
                continue
            content = unsealed(b"", stored)
            total += checksum([(content, b"")])
            if not content.startswith(key):
                wrong.append(f"the document under {key.hex()} belongs under another key")
                continue
            if not answers(view.snapshot.entry(content)):
                continue
            try:
                capture = view.decoded(content)
            except (Damaged, KeyError) as error:
                wrong.append(str(error))
                continue
            if keys.of(digest_of_key(key), capture.url) != key:
                wrong.append(f"the entry under {key.hex()} belongs under another key")
            captures += 1
            digest = digest_prefix(digest_of_key(key))
            digests += digest != last
            last = digest
    meta, containers = view.snapshot.meta(), sum(1 for _ in view.containers())
    found = {"captures": captures, "digests": digests, "containers": containers}
    for name, count in found.items():
        if count != meta[name]:
            wrong.append(f"{count} {name} are there, {meta[name]} were counted")
    if total % (1 << 64) != meta["checksum"]:
        wrong.append("what is stored is not what was written (its checksum is another)")
    return wrong
