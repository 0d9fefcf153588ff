"""
What a newcomer once met, put back: the defects of the first half hour, each with the test that
would notice it.

    python -m tests.mutation --by-hand "first contact"
"""

from tests.mutation.sabotages import Sabotage

CLI = "tests/attnverify/cli"
FOUND_OUT = "tests/attnverify/verdicts/test_found_out.py"
RECORDS = "tests/attnverify/failures/test_records.py"
ADAPTER = "tests/attnverify/backends/test_call_adapter.py"

FIRST_CONTACT = (
    # a file that is named is judged, and no other
    Sabotage(
        "first contact 1: a file named without an option is not judged",
        "attnverify/cli/judging.py",
        '    sources = [*backends, *given["backend"]]\n',
        '    sources = given["backend"] or ["numpy_ref"]\n',
        (f"{CLI}/test_cli.py", "-k", "a_file_may_be_named or no_backend"),
    ),
    Sabotage(
        "first contact 1: tests that name no backend judge our own columns",
        "attnverify/plugin/setup.py",
        "    if not sources:\n        raise ValueError(",
        '    sources = sources or ["numpy_ref"]\n    if not sources:\n        raise ValueError(',
        (f"{CLI}/test_plugin.py", "-k", "tests_without_a_backend"),
    ),
    # a right kernel in float32 is green
    Sabotage(
        "first contact 2: arithmetic in float32 is an error in float64",
        "attnverify/verdicts/search.py",
        'return "" if self.options.inputs else self.leave_out_narrower()',
        'return ""',
        (FOUND_OUT, "-k", "float32_is_found_out"),
    ),
    Sabotage(
        "first contact 2: refusals and hidden slots decide the exit status of a user's file",
        "attnverify/session.py",
        'default = "isolation" if parse_source(backend).is_column else "answer"',
        'default = "isolation"',
        (f"{CLI}/test_plugin.py", "-k", "the_answer_is_required"),
    ),
    # a Triton kernel of one's own is judged without a GPU
    Sabotage(
        "first contact 3: a file with Triton kernels has to find a GPU",
        "attnverify/backends/machine.py",
        "    if library is None or (asked is None and _has_gpu(library)):\n",
        "    if library is None or asked is None:\n",
        ("tests/attnverify/backends/test_machine.py", "-k", "triton_kernel_is_judged"),
    ),
    Sabotage(
        "first contact 3: a kernel without a gradient raises",
        "attnverify/backends/array_libraries.py",
        "            raise NotImplementedError(NO_GRADIENT)\n",
        "            raise RuntimeError(NO_GRADIENT)\n",
        (FOUND_OUT, "-k", "function_without_a_gradient"),
    ),
    # JAX ends, and in the dtypes that it has
    Sabotage(
        "first contact 4: each draw has a shape of its own to compile",
        "attnverify/verdicts/shown.py",
        "        return with_shapes_of(recipes, fitted_recipes(models, features))\n",
        "        return recipes\n",
        ("tests/attnverify/verdicts/test_shown.py",),
    ),
    Sabotage(
        "first contact 4: what was compiled is kept for ever",
        "attnverify/verdicts/columns.py",
        "        cell.implementation.library.forget()\n",
        "        pass\n",
        ("tests/attnverify/verdicts/test_shown.py",),
    ),
    Sabotage(
        "first contact 4: float64 is asked of a JAX that has none",
        "attnverify/verdicts/columns.py",
        "    if reason := cell.implementation.library.unsupported(cell.dtype):\n",
        "    if reason := cell.implementation.library.unsupported(cell.dtype) and '':\n",
        (FOUND_OUT, "-k", "library_has_not"),
    ),
    # what lies in .attnverify changes no verdict
    Sabotage(
        "first contact 5: a record that cannot be read is raised",
        "attnverify/failures/record.py",
        "        except ValueError as error:\n            damaged.append(",
        "        except ZeroDivisionError as error:\n            damaged.append(",
        (RECORDS, "-k", "damaged_record_costs"),
    ),
    Sabotage(
        "first contact 5: a folder that cannot be written to is raised",
        "attnverify/failures/store.py",
        "    except OSError as error:\n        return (f",
        "    except ZeroDivisionError as error:\n        return (f",
        (RECORDS, "-k", "nothing_can_be_written"),
    ),
    # arguments are known by their names
    Sabotage(
        "first contact 6: what no name tells is bound by its place",
        "attnverify/backends/calls/arguments.py",
        "    if unknown := [name for name in rest if free[name].default is EMPTY]",
        "    for name, own in zip(list(rest), (o for o in operation.arguments if o not in named),"
        " strict=False):\n        named[own] = name\n"
        "    if unknown := list[str]()",
        (ADAPTER, "-k", "bound_by_position"),
    ),
    Sabotage(
        "first contact 6: the mapping in force is not told",
        "attnverify/backends/calls/call_adapter.py",
        "    adapted.mapping = binding.describe()",
        '    adapted.mapping = ""',
        (ADAPTER, "-k", "mapping_is_told"),
    ),
    # a terminal, and a slip of the finger
    Sabotage(
        "first contact 7: the table is as wide as its longest row",
        "attnverify/report/table.py",
        "    if width is None or all(",
        "    if width or all(",
        ("tests/attnverify/report/test_table.py", "-k", "longer_than_the_terminal"),
    ),
    Sabotage(
        "first contact 7: a seed that is no number is taken",
        "attnverify/options.py",
        '    if text != "random" and not text.isdecimal():\n',
        '    if text == "":\n',
        (f"{CLI}/test_cli.py", "-k", "wrong_line"),
    ),
    Sabotage(
        "first contact 7: fp16 is no name of float16",
        "attnverify/options.py",
        "    return one_of(ALIASES.get(text, text), DTYPES)\n",
        "    return one_of(text, DTYPES)\n",
        (f"{CLI}/test_cli.py", "-k", "as_the_field_does"),
    ),
    Sabotage(
        "first contact 7: nothing is suggested for a misspelt word",
        "attnverify/options.py",
        """    hint = f"; did you mean {' or '.join(close)}?" if close else ""\n""",
        '    hint = ""\n',
        (f"{CLI}/test_cli.py", "-k", "wrong_line"),
    ),
)
