"""Triton's interpreter, made faster for the tests.

It patches triton.language anew, some 500 names, whenever a device function is called, which takes most of its time. All
that a launch calls is patched alike until the launch ends, so once per launch and set of modules is enough.
"""

from __future__ import annotations


def patch_once_per_launch():
    """Replace the interpreter's patching of triton.language by one that leaves out what is patched already."""
    from triton.runtime import interpreter

    original, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    if original.__module__ == __name__:
        return
    patched = set()

    def patch_lang(function):
        modules = frozenset({"tl", "core"} & function.__globals__.keys())
        if modules in patched:
            return None
        patched.add(modules)
        return original(function)

    def start(self, *arguments, **keywords):
        patched.clear()
        return launch(self, *arguments, **keywords)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_lang, start
