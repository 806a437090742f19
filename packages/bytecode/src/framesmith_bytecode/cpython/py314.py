"""The instruction encoding of CPython 3.14."""

from __future__ import annotations

from framesmith_bytecode.cpython.version_table import VersionTable

OPCODES = {
    "CACHE": 0, "BINARY_SLICE": 1, "BUILD_TEMPLATE": 2, "CALL_FUNCTION_EX": 4, "CHECK_EG_MATCH": 5,
    "CHECK_EXC_MATCH": 6, "CLEANUP_THROW": 7, "DELETE_SUBSCR": 8, "END_FOR": 9, "END_SEND": 10,
    "FORMAT_SIMPLE": 12, "FORMAT_WITH_SPEC": 13, "GET_AITER": 14, "GET_ANEXT": 15, "GET_ITER": 16,
    "GET_LEN": 18, "GET_YIELD_FROM_ITER": 19, "LOAD_BUILD_CLASS": 21, "LOAD_LOCALS": 22, "MAKE_FUNCTION": 23,
    "MATCH_KEYS": 24, "MATCH_MAPPING": 25, "MATCH_SEQUENCE": 26, "NOP": 27, "NOT_TAKEN": 28, "POP_EXCEPT": 29,
    "POP_ITER": 30, "POP_TOP": 31, "PUSH_EXC_INFO": 32, "PUSH_NULL": 33, "RETURN_GENERATOR": 34,
    "RETURN_VALUE": 35, "SETUP_ANNOTATIONS": 36, "STORE_SLICE": 37, "STORE_SUBSCR": 38, "TO_BOOL": 39,
    "UNARY_INVERT": 40, "UNARY_NEGATIVE": 41, "UNARY_NOT": 42, "WITH_EXCEPT_START": 43, "BINARY_OP": 44,
    "BUILD_INTERPOLATION": 45, "BUILD_LIST": 46, "BUILD_MAP": 47, "BUILD_SET": 48, "BUILD_SLICE": 49,
    "BUILD_STRING": 50, "BUILD_TUPLE": 51, "CALL": 52, "CALL_INTRINSIC_1": 53, "CALL_INTRINSIC_2": 54,
    "CALL_KW": 55, "COMPARE_OP": 56, "CONTAINS_OP": 57, "CONVERT_VALUE": 58, "COPY": 59, "COPY_FREE_VARS": 60,
    "DELETE_ATTR": 61, "DELETE_DEREF": 62, "DELETE_FAST": 63, "DELETE_GLOBAL": 64, "DELETE_NAME": 65,
    "DICT_MERGE": 66, "DICT_UPDATE": 67, "END_ASYNC_FOR": 68, "EXTENDED_ARG": 69, "FOR_ITER": 70,
    "GET_AWAITABLE": 71, "IMPORT_FROM": 72, "IMPORT_NAME": 73, "IS_OP": 74, "JUMP_BACKWARD": 75,
    "JUMP_BACKWARD_NO_INTERRUPT": 76, "JUMP_FORWARD": 77, "LIST_APPEND": 78, "LIST_EXTEND": 79, "LOAD_ATTR": 80,
    "LOAD_COMMON_CONSTANT": 81, "LOAD_CONST": 82, "LOAD_DEREF": 83, "LOAD_FAST": 84, "LOAD_FAST_AND_CLEAR": 85,
    "LOAD_FAST_BORROW": 86, "LOAD_FAST_BORROW_LOAD_FAST_BORROW": 87, "LOAD_FAST_CHECK": 88,
    "LOAD_FAST_LOAD_FAST": 89, "LOAD_FROM_DICT_OR_DEREF": 90, "LOAD_FROM_DICT_OR_GLOBALS": 91,
    "LOAD_GLOBAL": 92, "LOAD_NAME": 93, "LOAD_SMALL_INT": 94, "LOAD_SPECIAL": 95, "LOAD_SUPER_ATTR": 96,
    "MAKE_CELL": 97, "MAP_ADD": 98, "MATCH_CLASS": 99, "POP_JUMP_IF_FALSE": 100, "POP_JUMP_IF_NONE": 101,
    "POP_JUMP_IF_NOT_NONE": 102, "POP_JUMP_IF_TRUE": 103, "RAISE_VARARGS": 104, "RERAISE": 105, "SEND": 106,
    "SET_ADD": 107, "SET_FUNCTION_ATTRIBUTE": 108, "SET_UPDATE": 109, "STORE_ATTR": 110, "STORE_DEREF": 111,
    "STORE_FAST": 112, "STORE_FAST_LOAD_FAST": 113, "STORE_FAST_STORE_FAST": 114, "STORE_GLOBAL": 115,
    "STORE_NAME": 116, "SWAP": 117, "UNPACK_EX": 118, "UNPACK_SEQUENCE": 119, "YIELD_VALUE": 120, "RESUME": 128,
}  # fmt: skip

CACHES = {
    "BINARY_OP": 5, "CALL": 3, "CALL_KW": 3, "COMPARE_OP": 1, "CONTAINS_OP": 1, "FOR_ITER": 1,
    "JUMP_BACKWARD": 1, "LOAD_ATTR": 9, "LOAD_GLOBAL": 4, "LOAD_SUPER_ATTR": 1, "POP_JUMP_IF_FALSE": 1,
    "POP_JUMP_IF_NONE": 1, "POP_JUMP_IF_NOT_NONE": 1, "POP_JUMP_IF_TRUE": 1, "SEND": 1, "STORE_ATTR": 4,
    "STORE_SUBSCR": 1, "TO_BOOL": 3, "UNPACK_SEQUENCE": 1,
}  # fmt: skip

TABLE = VersionTable(
    version=(3, 14),
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
    common_constants=(AssertionError, NotImplementedError, tuple, all, any),
    part_bits={"defaults": 1, "kwdefaults": 2, "annotations": 4, "closure": 8, "annotate": 16},
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
