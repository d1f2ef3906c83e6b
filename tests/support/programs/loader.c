/* A program that is not linked with libibverbs: it loads it, and takes functions of versions that it knows.
 *
 *   loader verbs NAME      loader mrc NAME      with the library's name */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                                                       \
    if (!(condition)) {                                                                                        \
        printf("line %d: %s\n", __LINE__, #condition);                                                        \
        return 1;                                                                                              \
    }

static void *library;

static void *find(const char *name, const char *version)
{
    return version ? dlvsym(library, name, version) : dlsym(library, name);
}

static int verbs(void)
{
    struct ibv_device **(*list)(int *) = find("ibv_get_device_list", "IBVERBS_1.1");
    const char *(*name)(struct ibv_device *) = find("ibv_get_device_name", "IBVERBS_1.1");
    struct ibv_context *(*open)(struct ibv_device *) = find("ibv_open_device", "IBVERBS_1.1");
    int (*query)(struct ibv_context *, struct ibv_device_attr *) = find("ibv_query_device", NULL);
    int (*close)(struct ibv_context *) = find("ibv_close_device", "IBVERBS_1.1");
    void *(*cm)(void) = find("rdma_create_event_channel", NULL);
    struct ibv_device_attr attr;
    int count;

    CHECK(list && name && open && query && close);
    struct ibv_device **devices = list(&count);
    CHECK(count == 1);
    struct ibv_context *context = open(devices[0]);
    CHECK(context && !query(context, &attr) && attr.phys_port_cnt == 1);
    printf("%s\n", name(devices[0]));
    fflush(stdout);
    CHECK(!cm || !cm());
    CHECK(!close(context));
    return 0;
}

static int mrc(void)
{
    void (*version)(uint32_t *, uint32_t *, uint32_t *, uint32_t *) = find("mrc_query_version", NULL);
    uint32_t current;

    CHECK(version);
    version(&current, NULL, NULL, NULL);
    printf("%u.%u.%u\n", current >> 24, current >> 16 & 0xFF, current & 0xFFFF);
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3 && (library = dlopen(argv[2], RTLD_NOW)));
    return strcmp(argv[1], "mrc") ? verbs() : mrc();
}
