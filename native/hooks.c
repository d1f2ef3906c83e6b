/* dlsym and dlvsym, so that programs that load libibverbs themselves get this library's functions, too.
 *
 * A search by name would find the two functions here. So the real dlsym and dlvsym are searched in the C library's
 * table of symbols. They are called by tail calls, because the C library uses the return address to know the caller. */
#define _GNU_SOURCE
#include "common.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

typedef void *(*lookup)(void *handle, const char *name);
typedef void *(*versioned_lookup)(void *handle, const char *name, const char *version);

EXPORT void *dlsym(void *restrict handle, const char *restrict name);
EXPORT void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version);

static lookup real_dlsym;
static versioned_lookup real_dlvsym;
static void *self; /* this library; a library that wraps libibverbs may precede it and look up our functions */

/* Return the number of symbols: one more than the highest symbol in a chain of the GNU hash table. */
static uint32_t count_symbols(const uint32_t *hash)
{
    uint32_t buckets = hash[0], first = hash[1], last = 0;
    const uint32_t *bucket = hash + 4 + hash[2] * (__ELF_NATIVE_CLASS / 32), *chain = bucket + buckets;

    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last)
            last = bucket[i];
    if (last < first)
        return 0;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

static void find_real(void)
{
    struct link_map *map = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL;
    Dl_info here;

    if (!map)
        return;
    if (dladdr(&self, &here))
        self = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const void *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_STRTAB)
            names = (const void *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_GNU_HASH)
            hash = (const void *)entry->d_un.d_ptr;
    }
    for (uint32_t i = 0, count = symbols && names && hash ? count_symbols(hash) : 0; i < count; i++) {
        const char *name = names + symbols[i].st_name;
        void *address = (void *)(map->l_addr + symbols[i].st_value);
        if (!symbols[i].st_shndx)
            continue;
        if (!strcmp(name, "dlsym"))
            real_dlsym = (lookup)address;
        else if (!strcmp(name, "dlvsym"))
            real_dlvsym = (versioned_lookup)address;
    }
}

static bool ours(const char *name)
{
    return !strncmp(name, "ibv_", 4) || !strncmp(name, "_ibv_", 5) || !strncmp(name, "rdma_create_", 12);
}

__attribute__((constructor)) static void set_up(void) { find_real(); }

void *dlsym(void *restrict handle, const char *restrict name)
{
    if (!real_dlsym)
        find_real();
    if (real_dlsym && ours(name)) {
        void *found = real_dlsym(self ? self : RTLD_DEFAULT, name);
        if (found)
            return found;
    }
    return real_dlsym ? real_dlsym(handle, name) : NULL;
}

void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
    if (!real_dlvsym)
        find_real();
    if (real_dlsym && ours(name)) {
        void *found = real_dlsym(self ? self : RTLD_DEFAULT, name);
        if (found)
            return found;
    }
    return real_dlvsym ? real_dlvsym(handle, name, version) : NULL;
}
