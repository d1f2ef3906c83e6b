/* What the parts of lib_mrc.so share. */
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
