"""The instruction encoding of CPython 3.12."""

from __future__ import annotations

from framesmith_bytecode.cpython.version_table import VersionTable

OPCODES = {
    "CACHE": 0, "POP_TOP": 1, "PUSH_NULL": 2, "END_FOR": 4, "END_SEND": 5, "NOP": 9, "UNARY_NEGATIVE": 11,
    "UNARY_NOT": 12, "UNARY_INVERT": 15, "BINARY_SUBSCR": 25, "BINARY_SLICE": 26, "STORE_SLICE": 27,
    "GET_LEN": 30, "MATCH_MAPPING": 31, "MATCH_SEQUENCE": 32, "MATCH_KEYS": 33, "PUSH_EXC_INFO": 35,
    "CHECK_EXC_MATCH": 36, "CHECK_EG_MATCH": 37, "WITH_EXCEPT_START": 49, "GET_AITER": 50, "GET_ANEXT": 51,
    "BEFORE_ASYNC_WITH": 52, "BEFORE_WITH": 53, "END_ASYNC_FOR": 54, "CLEANUP_THROW": 55,
    "STORE_SUBSCR": 60, "DELETE_SUBSCR": 61, "GET_ITER": 68, "GET_YIELD_FROM_ITER": 69,
    "LOAD_BUILD_CLASS": 71, "LOAD_ASSERTION_ERROR": 74, "RETURN_GENERATOR": 75, "RETURN_VALUE": 83,
    "SETUP_ANNOTATIONS": 85, "LOAD_LOCALS": 87, "POP_EXCEPT": 89, "STORE_NAME": 90, "DELETE_NAME": 91,
    "UNPACK_SEQUENCE": 92, "FOR_ITER": 93, "UNPACK_EX": 94, "STORE_ATTR": 95, "DELETE_ATTR": 96,
    "STORE_GLOBAL": 97, "DELETE_GLOBAL": 98, "SWAP": 99, "LOAD_CONST": 100, "LOAD_NAME": 101,
    "BUILD_TUPLE": 102, "BUILD_LIST": 103, "BUILD_SET": 104, "BUILD_MAP": 105, "LOAD_ATTR": 106,
    "COMPARE_OP": 107, "IMPORT_NAME": 108, "IMPORT_FROM": 109, "JUMP_FORWARD": 110,
    "POP_JUMP_IF_FALSE": 114, "POP_JUMP_IF_TRUE": 115, "LOAD_GLOBAL": 116, "IS_OP": 117,
    "CONTAINS_OP": 118, "RERAISE": 119, "COPY": 120, "RETURN_CONST": 121, "BINARY_OP": 122, "SEND": 123,
    "LOAD_FAST": 124, "STORE_FAST": 125, "DELETE_FAST": 126, "LOAD_FAST_CHECK": 127,
    "POP_JUMP_IF_NOT_NONE": 128, "POP_JUMP_IF_NONE": 129, "RAISE_VARARGS": 130, "GET_AWAITABLE": 131,
    "MAKE_FUNCTION": 132, "BUILD_SLICE": 133, "JUMP_BACKWARD_NO_INTERRUPT": 134, "MAKE_CELL": 135,
    "LOAD_CLOSURE": 136, "LOAD_DEREF": 137, "STORE_DEREF": 138, "DELETE_DEREF": 139, "JUMP_BACKWARD": 140,
    "LOAD_SUPER_ATTR": 141, "CALL_FUNCTION_EX": 142, "LOAD_FAST_AND_CLEAR": 143, "EXTENDED_ARG": 144,
    "LIST_APPEND": 145, "SET_ADD": 146, "MAP_ADD": 147, "COPY_FREE_VARS": 149, "YIELD_VALUE": 150,
    "RESUME": 151, "MATCH_CLASS": 152, "FORMAT_VALUE": 155, "BUILD_CONST_KEY_MAP": 156,
    "BUILD_STRING": 157, "LIST_EXTEND": 162, "SET_UPDATE": 163, "DICT_MERGE": 164, "DICT_UPDATE": 165,
    "CALL": 171, "KW_NAMES": 172, "CALL_INTRINSIC_1": 173, "CALL_INTRINSIC_2": 174,
    "LOAD_FROM_DICT_OR_GLOBALS": 175, "LOAD_FROM_DICT_OR_DEREF": 176,
}  # fmt: skip

CACHES = {
    "BINARY_OP": 1, "BINARY_SUBSCR": 1, "CALL": 3, "COMPARE_OP": 1, "FOR_ITER": 1, "LOAD_ATTR": 9,
    "LOAD_GLOBAL": 4, "LOAD_SUPER_ATTR": 1, "SEND": 1, "STORE_ATTR": 4, "STORE_SUBSCR": 1,
    "UNPACK_SEQUENCE": 1,
}  # fmt: skip

TABLE = VersionTable(
    version=(3, 12),
    opcodes=OPCODES,
    caches=CACHES,
    null_first=True,
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
    for_exit=("END_FOR",),
    explicit_end_send=True,
    calls="kw_names",
    strings="format_value",
    compare_shift=4,
    compare_masks=True,
    compare_bool_bit=0,
    attr_method_bit=True,
    return_const=True,
    bool_jumps=False,
    unchecked_fast=True,
    function_attributes=False,
    closure_by_fast=False,
    yield_index=2,
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
    },
)
