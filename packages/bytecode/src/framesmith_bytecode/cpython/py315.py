"""The instruction encoding of CPython 3.15."""

from __future__ import annotations

from framesmith_bytecode.cpython.version_table import VersionTable

OPCODES = {
    "CACHE": 0, "BINARY_SLICE": 1, "BUILD_TEMPLATE": 2, "CALL_FUNCTION_EX": 4, "CHECK_EG_MATCH": 5,
    "CHECK_EXC_MATCH": 6, "CLEANUP_THROW": 7, "DELETE_SUBSCR": 8, "END_FOR": 9, "END_SEND": 10,
    "FORMAT_SIMPLE": 12, "FORMAT_WITH_SPEC": 13, "GET_AITER": 14, "GET_ANEXT": 15, "GET_LEN": 16,
    "LOAD_BUILD_CLASS": 19, "LOAD_LOCALS": 20, "MAKE_FUNCTION": 21, "MATCH_KEYS": 22, "MATCH_MAPPING": 23,
    "MATCH_SEQUENCE": 24, "NOP": 25, "NOT_TAKEN": 26, "POP_EXCEPT": 27, "POP_ITER": 28, "POP_TOP": 29,
    "PUSH_EXC_INFO": 30, "PUSH_NULL": 31, "RETURN_GENERATOR": 32, "RETURN_VALUE": 33, "SETUP_ANNOTATIONS": 34,
    "STORE_SLICE": 35, "STORE_SUBSCR": 36, "TO_BOOL": 37, "UNARY_INVERT": 38, "UNARY_NEGATIVE": 39,
    "UNARY_NOT": 40, "WITH_EXCEPT_START": 41, "BINARY_OP": 42, "BUILD_INTERPOLATION": 43, "BUILD_LIST": 44,
    "BUILD_MAP": 45, "BUILD_SET": 46, "BUILD_SLICE": 47, "BUILD_STRING": 48, "BUILD_TUPLE": 49, "CALL": 50,
    "CALL_INTRINSIC_1": 51, "CALL_INTRINSIC_2": 52, "CALL_KW": 53, "COMPARE_OP": 54, "CONTAINS_OP": 55,
    "CONVERT_VALUE": 56, "COPY": 57, "COPY_FREE_VARS": 58, "DELETE_ATTR": 59, "DELETE_DEREF": 60,
    "DELETE_FAST": 61, "DELETE_GLOBAL": 62, "DELETE_NAME": 63, "DICT_MERGE": 64, "DICT_UPDATE": 65,
    "END_ASYNC_FOR": 66, "EXTENDED_ARG": 67, "FOR_ITER": 68, "GET_AWAITABLE": 69, "GET_ITER": 70,
    "IMPORT_FROM": 71, "IMPORT_NAME": 72, "IS_OP": 73, "JUMP_BACKWARD": 74, "JUMP_BACKWARD_NO_INTERRUPT": 75,
    "JUMP_FORWARD": 76, "LIST_APPEND": 77, "LIST_EXTEND": 78, "LOAD_ATTR": 79, "LOAD_COMMON_CONSTANT": 80,
    "LOAD_CONST": 81, "LOAD_DEREF": 82, "LOAD_FAST": 83, "LOAD_FAST_AND_CLEAR": 84, "LOAD_FAST_BORROW": 85,
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": 86, "LOAD_FAST_CHECK": 87, "LOAD_FAST_LOAD_FAST": 88,
    "LOAD_FROM_DICT_OR_DEREF": 89, "LOAD_FROM_DICT_OR_GLOBALS": 90, "LOAD_GLOBAL": 91, "LOAD_NAME": 92,
    "LOAD_SMALL_INT": 93, "LOAD_SPECIAL": 94, "LOAD_SUPER_ATTR": 95, "MAKE_CELL": 96, "MAP_ADD": 97,
    "MATCH_CLASS": 98, "POP_JUMP_IF_FALSE": 99, "POP_JUMP_IF_NONE": 100, "POP_JUMP_IF_NOT_NONE": 101,
    "POP_JUMP_IF_TRUE": 102, "RAISE_VARARGS": 103, "RERAISE": 104, "SEND": 105, "SET_ADD": 106,
    "SET_FUNCTION_ATTRIBUTE": 107, "SET_UPDATE": 108, "STORE_ATTR": 109, "STORE_DEREF": 110, "STORE_FAST": 111,
    "STORE_FAST_LOAD_FAST": 112, "STORE_FAST_STORE_FAST": 113, "STORE_GLOBAL": 114, "STORE_NAME": 115,
    "SWAP": 116, "UNPACK_EX": 117, "UNPACK_SEQUENCE": 118, "YIELD_VALUE": 119, "RESUME": 128,
}  # fmt: skip

CACHES = {
    "BINARY_OP": 5, "CALL": 3, "CALL_FUNCTION_EX": 1, "CALL_KW": 3, "COMPARE_OP": 1, "CONTAINS_OP": 1,
    "FOR_ITER": 1, "GET_ITER": 1, "JUMP_BACKWARD": 1, "LOAD_ATTR": 9, "LOAD_GLOBAL": 4, "LOAD_SUPER_ATTR": 1,
    "POP_JUMP_IF_FALSE": 1, "POP_JUMP_IF_NONE": 1, "POP_JUMP_IF_NOT_NONE": 1, "POP_JUMP_IF_TRUE": 1,
    "RESUME": 1, "SEND": 1, "STORE_ATTR": 4, "STORE_SUBSCR": 1, "TO_BOOL": 3, "UNPACK_SEQUENCE": 1,
}  # fmt: skip

TABLE = VersionTable(
    version=(3, 15),
    opcodes=OPCODES,
    caches=CACHES,
    null_first=False,
    jumps={
        "JUMP": ("JUMP_FORWARD", "JUMP_BACKWARD"),
        "JUMP_NO_INTERRUPT": ("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
        "POP_JUMP_IF_FALSE": ("POP_JUMP_IF_FALSE", None),
        "POP_JUMP_IF_TRUE": ("POP_JUMP_IF_TRUE", None),
        "POP_JUMP_IF_NONE": ("POP_JUMP_IF_NONE", None),
        "POP_JUMP_IF_NOT_NONE": ("POP_JUMP_IF_NOT_NONE", None),
        "FOR_ITER": ("FOR_ITER", None),
        "SEND": ("SEND", None),
    },
    for_exit=("END_FOR", "POP_ITER"),
    explicit_end_send=True,
    calls="call_kw",
    strings="convert_value",
    compare_shift=5,
    compare_masks=True,
    compare_bool_bit=16,
    attr_method_bit=True,
    return_const=False,
    bool_jumps=True,
    unchecked_fast=True,
    function_attributes=True,
    closure_by_fast=True,
    yield_index=0,
    exit_slots=2,
    not_taken=True,
    borrows=True,
    ex_mapping=True,
    async_for_origin=True,
    small_ints=256,
    common_constants=(AssertionError, NotImplementedError, tuple, all, any, list, set, None, "", True, False, -1),
    part_bits={"defaults": 1, "kwdefaults": 2, "annotations": 4, "closure": 8, "annotate": 16},
    iterator_slots=2,
    yield_from_iter=3,
    generators_iterate=True,
    import_modes=("IMPORT_NAME_MAYBE_LAZY", "IMPORT_NAME_LAZY", "IMPORT_NAME"),
    resume_mask=7,
    special_methods=("__enter__", "__exit__", "__aenter__", "__aexit__"),
    # These run Python functions inside the interpreter loop; an error in them resumes at the instruction itself, not
    # after it (Python/ceval.c, resume_with_error).
    errors_look_back=frozenset(
        ("CALL", "CALL_FUNCTION_EX", "BINARY_SUBSCR", "LOAD_ATTR", "LOAD_METHOD", "FOR_ITER", "SEND")
    ),
    intrinsics_1={
        "PRINT_EXPR": 1,
        "IMPORT_STAR": 2,
        "STOPITERATION_ERROR": 3,
        "ASYNC_GEN_WRAP": 4,
        "UNARY_POSITIVE": 5,
        "LIST_TO_TUPLE": 6,
        "TYPEVAR": 7,
        "PARAMSPEC": 8,
        "TYPEVARTUPLE": 9,
        "SUBSCRIPT_GENERIC": 10,
        "TYPEALIAS": 11,
    },
    intrinsics_2={
        "PREP_RERAISE_STAR": 1,
        "TYPEVAR_WITH_BOUND": 2,
        "TYPEVAR_WITH_CONSTRAINTS": 3,
        "SET_FUNCTION_TYPE_PARAMS": 4,
        "SET_TYPEPARAM_DEFAULT": 5,
    },
    pairs={
        ("LOAD_FAST", "LOAD_FAST"): "LOAD_FAST_LOAD_FAST",
        ("STORE_FAST", "LOAD_FAST"): "STORE_FAST_LOAD_FAST",
        ("STORE_FAST", "STORE_FAST"): "STORE_FAST_STORE_FAST",
    },
)
