/* Types and functions that all source files of lib_mrc.so use. */
#pragma once
#include "common.h"
#include "mrc_abi.h"

struct mrc_context {
    struct ibv_context *verbs;
};

static inline int minus(int error)
{
    if (!error)
        return 0;
    errno = error;
    return -1;
}
