"""Tests of the script that a report makes of the page's modules."""

import pytest

from sentinel.web.module_bundle import bundle


def bundled(**modules):
    texts = {f"{name.replace('__', '/')}.js": text for name, text in modules.items()}
    return bundle("main.js", texts.__getitem__)


def test_a_module_comes_after_what_it_imports_and_once():
    script = bundled(
        main='import { a } from "./sections/a.js";\nimport { b } from "./b.js";\na(b);\n',
        sections__a='import { b } from "../b.js";\nexport function a() { return b; }\n',
        b="export const b = 1;\n",
    )

    assert [line for line in script.splitlines() if line.startswith("//")] == [
        "// b.js",
        "// sections/a.js",
        "// main.js",
    ]
    assert "import" not in script
    assert "export" not in script


def test_a_script_cannot_end_within_a_string():
    script = bundled(main='const text = "</script><!--<SCRIPT>";\n')

    assert 'const text = "\\x3C/script>\\x3C!--\\x3CSCRIPT>";' in script


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("export default 1;", "cannot be bundled: export default 1;"),
        ('import * as a from "./a.js";', "cannot be bundled: import"),
        ('import { a as b } from "./a.js";', "under another name"),
        ('const a = await import("./a.js");', "cannot be bundled: import("),
        ("const a = import.meta.url;", "cannot be bundled: import."),
        ('import { a } from "./a.js";\nconst { x, y: a } = {};', "the name a is also in a.js"),
        ('import { a } from "./a.js";\nfunction a() {}', "the name a is also in a.js"),
    ],
)
def test_what_cannot_be_joined_is_refused(text, problem):
    with pytest.raises(ValueError, match=r"cannot be bundled|also in") as raised:
        bundled(main=text, a="export const a = 1;\n")

    assert problem in str(raised.value)


def test_words_of_texts_are_no_module_syntax():
    bundled(main='const text = "We import { it }";\nconst exported = 1;\nfunction importAll() {}\n')
