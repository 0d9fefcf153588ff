"""
Sentences: every text in which a diagnosis tells what it has found, as templates with named places.

A place that says where begins with a colon, or is empty: ``: from key 64 of 96 on``. What a
candidate is called stands beside its function, in the tables of conventions, faults and mistakes.
"""

# what the implementation is instead

EQUALS = "equals the specification with {mistakes} ({share})"
EXACTLY, OF_THE_BOUND = "exactly", "{share:.2g}x of the bound"
AS_IN = "{mistake}, as in {packages}"
EITHER = " or with "
BOTH = "{one} and with {other}"
WHEN = "{cause}, when {where}"
PART = "{cause}, when {where}: {explained} of {cases} failing cases; the others are unexplained"
TWO_PARTS = "{cause}, when {where}; else with {other}"

# hidden slots

ZERO_TIMES_NAN = (
    "a weight of 0 times NaN is NaN: with ordinary numbers in the hidden slots the answer is right"
)
ZERO_TIMES_NAN_IN_SOME = ZERO_TIMES_NAN + " in {right} of {cases} cases"
WRONG_WITHOUT_NAN = "wrong with ordinary numbers in the hidden slots too"
CAUSE_WITHOUT_NAN = "{cause}, with ordinary numbers in the hidden slots too"
BESIDES_ZERO_TIMES_NAN = "{cause}; besides, a weight of 0 times NaN is NaN"

# arithmetic

STAGE_ROUNDED = "{stage} rounded to {name}"
ALLOWED = '{stage}, which "{field}": "{declared}" in PRECISION allows'
ARITHMETIC = "{dtype} arithmetic"
STORED_IN = "every element of the output is a {dtype} number: computed or stored in it"
FLUSHED = "subnormal numbers count as 0"
FLUSHED_DECLARED = (
    "subnormal numbers count as 0, as with -ftz=true or in atomic sums in float32; "
    "declare PRECISION = {declared}, under which these cases pass"
)
NEARNESS = "as near as "
FREEDOM_DECLARED = NEARNESS + (
    "{what}; if the kernel does so, declare PRECISION = {declared}, under which these cases pass"
)

NARROW_STEP = "something is computed in float32"
NARROW_STEP_SEEN = NARROW_STEP + (
    ": it is right to the digits of float32; make each constant, table and step in float64, or "
    "leave float64 out of DTYPES"
)

OPERANDS = "operands in {name}"
OPERANDS_DECLARED = (
    "operands in {name}: the answer is the same, bit for bit, when {argument} is rounded to it; "
    "declare PRECISION = {declared}, under which these cases pass"
)

PARTIALS = "sums kept in {dtype} between blocks"
PARTIALS_DECLARED = (
    "as near as sums that are kept in {dtype} between blocks of rows; if the kernel keeps them so, "
    "declare PRECISION = {declared}, under which this case passes"
)

# factors

HAS_FACTOR = "{what} {factor}"
CONSTANT_SCALE = "scores scaled by {scale:.4g} whatever D is, in place of 1/sqrt(D)"
SCALE_OF_SIZE = "scores scaled by {letter}^{exponent:g} in place of 1/sqrt(D)"
SCALE_IS = "scores scaled by {law} in place of 1/sqrt(D)"
WIDTH_OF_TILES = "1/sqrt(D rounded up to a multiple of {tile})"
WIDTH_OF_POWER = "1/sqrt(D rounded up to a power of two)"
CAPPED = "scores capped by {number:g}, c tanh(score / c), where no cap is given"
CLIPPED = "scores clipped to -{number:g} and {number:g}"
CLIPPED_ABOVE = "scores above {number:g} taken for {number:g}"
NEGATIVE_TIMES = "scores below 0 multiplied by {number:g}"
SMALL_WEIGHTS = "weights below {number:g} taken for 0"
CLIPPED_GRADIENT = "the gradient of the scores clipped to -{number:g} and {number:g}"
ADDED_TO_SHIFTED = "{number:g} added to the sum of the softmax, after its maximum was subtracted"
ADDED_TO_SUM = (
    "{number:g} added to the sum of the exponentials, as of a further key without a value"
)
ADDED_TO_WEIGHTS = "{number:g} added to each weight, to those of hidden keys too"
ADDED_TO_SEEN = "{number:g} added to each weight of a visible key"
HIDDEN_AT = "hidden scores at {number:g}, which is a number and not minus infinity"
HIDDEN_AT_SOME = "hidden scores at a number in place of minus infinity"
HIDDEN_AT_BUT = f"{HIDDEN_AT}, but for rows that see no key"
HIDDEN_AT_SOME_BUT = f"{HIDDEN_AT_SOME}, but for rows that see no key"
BOOLEAN_HIDDEN_AT = "keys that a boolean mask hides at {number:g}, which is a number"
BOOLEAN_HIDDEN_AT_SOME = "keys that a boolean mask hides at a number in place of minus infinity"
ADDED_TO_HIDDEN = "{number:g} added to hidden scores in place of minus infinity"
EVERY_OUTPUT = "every output is {factor}"
OUTPUT_HAS_FACTOR = "{name} is {factor}"
OTHERS_RIGHT = "{told}; the others are right"
OUTPUT_WITH = "{names} as of the specification with {mistake}"
GRADIENTS_OF = "the gradients are those of the specification with {mistakes} ({cases} cases)"
NO_GRADIENT = "no gradient reaches {names}: 0 everywhere"
ALL_ZEROS = "nothing but zeros in {names}"
OFF = "off by a factor"
TIMES_ZERO = "multiplied by 0"
OFF_BY = "off by a factor of {factor:.4g}"
OFF_BY_POWER_OF_TWO = "off by a factor of {factor:.4g} ({sign}2^{exponent:g})"
OFF_BY_POWER_OF_SIZE = "off by a factor of {letter}^{exponent:g}"
OFF_BY_SHARE = "off by a factor of {share}, p the share that dropout drops"
LOW, HIGH = "low", "high"
PER_CENT = "{share:.2%} {side}"
SLOPES = "slopes of some heads"
SLOPES_OF_HEADS = "slope of {told} (of {heads} heads)"
SLOPES_OF_MORE_HEADS = "slope of {told} and {more} more (of {heads} heads)"
HEAD_HAS_FACTOR = "head {head} {factor}"

# what probes of the weights show

WEIGHTS_RIGHT = "the weights are right, and what is wrong is {outputs}"
HIDDEN_KEY_WEIGHED = "a hidden key has weight{hides}{where}"
HIDDEN_BY = ", which {name} alone hides"
EMPTY_ROWS_WEIGHED = "rows that see no key have weights{hides}{where}"
VISIBLE_KEY_LOST = "a visible key has no weight{where}"
ROW_FACTOR = (
    "the weights of a row are right but for a factor: rows sum to {least:.4g} .. "
    "{most:.4g}{sinks}{where}"
)
SINKS_COUNTED = ", as if a sink counted {times:.3g} times"
NAN_WEIGHTS = "the weights are NaN{where}"
WEIGHTS_WRONG = "the weights are wrong{where}"
WRONG_BY_SCORES = "the weights are wrong, and right where {zero} is 0{where}"
WRONG_WITHOUT_SCORES = "the weights are wrong even where {alike}{where}"
ALL_ALIKE = "every visible key of a row has the same weight, as if all scores were the same{where}"
BIASES_ALONE, ALL_EQUAL = "the scores are their biases alone", "all scores are equal"

# what turned pairs show

TABLE_WRONG = "the {name} by which pairs turn are wrong, the {other} are right"
TABLE_SHIFTED = "the {name} of pairs read at other places of their table"
TABLE_SHIFTED_BY = "{moved}: {shifts}; the {other} are right"
PAIRS_ON = "{by:+} where {pairs} pairs turn"

# which heads are read
HEADS_READ = "query heads read other heads of keys and values{rule}"
HEADS_SHOWN = "{name}: {read} where {wanted} are shared (H={H}, G={G})"

# what isolating inputs show

FIRST_STAGE = "{stage}: wrong {words}{right}"
RIGHT_BEFORE = ", right {words}"
RIGHT_WITH_ONE_HEAD = "; the same is right with one head"
RIGHT_WITH_ONE_ENTRY = "; the same is right with one batch entry"
WRONG_STAGE = "{stage}: right {right}"
AND_STAGE = "{outputs}; what is wrong first: {stage}"
AGREES = "{name} (line {line}) is {law} of the specification, but "
FIRST_LINE = "; {before}{name} (line {line}) is not {law}, as it is in calls that pass"
FIRST_LINE_ALONE = (
    "; {name} (line {line}) is not {law} of the specification, as it is in calls that pass"
)
LAST_LINE = (
    "; the last variable that is right in calls that fail is {name} (line {line}), {law} of the "
    "specification"
)
VARIABLE = "`{name}`"
RETURNED = "what `{function}` returns"
RESULT = "result {place} of `{function}`"

# outputs and where in them

LIST = "{most} and {last}"
WRONG = "wrong: {outputs}"
OUTPUT, WEIGHTS = "the output", "the weights"
NUMBERED_OUTPUT, NUMBERED_GRADIENT = "output {number}", "gradient {number}"
GRADIENT_BY = "the gradient by {name}"
THERE = ", {what} where it is wrong"
THERE_AT = ", {what}{where}"
END = ", whose last {name}s are left 0 wherever it is wrong (in one case {since}; {count} cases)"
AGAIN = (
    ", that of the first {name}s again and again wherever it is wrong (in one of {cases} cases "
    "that of the first {count} of {size})"
)
ZERO, NAN, OTHER_SIGN = "0", "NaN", "with the other sign"
PLACE = ": {places}"
IN_ONE, ONE_KEY = "in {name} {index} alone", "key {index} alone"
IN_LAST, LAST_KEY = "in the last {name} ({index}) alone", "the last key ({index}) alone"
FROM, UP_TO = "from {name} {index} of {size} on", "up to {name} {index} of {size}"
SOME, SOME_AND_MORE = "{name} {indices}", "{name} {indices} ..."
OF_EVERY = "{name} {indices} of every {period}"
PLACE_OF_AXIS = "axis {axis} place"
INDEX_OF_AXIS = "axis {axis}, index"

# regions

TRIED = "{passed} passed, {failed} failed"
TRIED_APART = TRIED + ", and what lies between was not tried"
HOLDS = "that holds in {failures} calls that fail, {passes} that pass"
OF = "{inside} of {all}"
NOT_TRIED = "(covers {failures} failures, {passes} passes; tried on no fresh draw{tried})"
COVERS = (
    "(covers {failures} failures, {passes} passes; on fresh draws {fresh_failures} and "
    "{fresh_passes})"
)
NONE_FAILED = (
    "(covers {failures} failures, {passes} passes; no fresh draw failed, of those that passed it "
    "holds in {fresh_passes}{tried})"
)
