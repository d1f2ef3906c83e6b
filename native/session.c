/* The connection to the NIC service: requests, answers, and detection of the end of the service. */
#define _GNU_SOURCE
#include "common.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

_Static_assert(sizeof(union ibv_gid) == 16, "a GID has 16 bytes");

static int connect_service(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("MRCLAB_NIC");
    int fd;

    if (!path || strlen(path) >= sizeof(address.sun_path)) {
        errno = ENODEV;
        return -1;
    }
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
        close(fd);
        return -1;
    }
    return fd;
}

static int send_request(int fd, const struct wire_request *request, const int *fds, int count)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {(void *)(uintptr_t)request, sizeof(*request)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;

    if (count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, (size_t)count * sizeof(int));
    }
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof(*request) ? 0 : EIO;
}

/* Store up to `most` descriptors of a reply and close all others. Return the number of stored descriptors. */
static int take_fds(struct msghdr *message, int *fds, int most)
{
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    int count = 0;

    if (!header || header->cmsg_type != SCM_RIGHTS)
        return 0;
    int here = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (int i = 0; i < here; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(header) + (size_t)i * sizeof(int), sizeof(fd));
        if (count < most)
            fds[count++] = fd;
        else
            close(fd);
    }
    return count;
}

static int receive_reply(int fd, struct wire_reply *reply, int *fds, int most)
{
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {reply, sizeof(*reply)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
    ssize_t received;

    do
        received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (received < 0 && errno == EINTR);
    if (received != (ssize_t)sizeof(*reply))
        return EIO;
    int count = take_fds(&message, fds, most);
    if (!reply->error && count != most) {
        while (count)
            close(fds[--count]);
        return EIO;
    }
    return reply->error;
}

static int exchange(struct session *session, const struct wire_request *request, const int *sent, int sent_count,
                    struct wire_reply *reply, int *fds, int most)
{
    struct wire_reply unwanted;
    int error = EIO;

    pthread_mutex_lock(&session->lock);
    if (!session->dead) {
        error = send_request(session->socket, request, sent, sent_count);
        if (!error)
            error = receive_reply(session->socket, reply ? reply : &unwanted, fds, most);
    }
    pthread_mutex_unlock(&session->lock);
    return error;
}

int session_call(struct session *session, uint32_t op, const uint64_t *args, int count, const uint8_t *gid,
                 struct wire_reply *reply, int *fds, int most_fds)
{
    struct wire_request request = {.op = op, .version = WIRE_VERSION};

    if (count)
        memcpy(&request.a0, args, (size_t)count * sizeof(*args));
    if (gid)
        memcpy(request.gid, gid, sizeof(request.gid));
    return exchange(session, &request, NULL, 0, reply, fds, most_fds);
}

EXPORT int mrclab_call(struct ibv_qp *qp, uint32_t op, const uint64_t *args, int count)
{
    return session_call(&context_of(qp->context)->session, op, args, count, NULL, NULL, NULL, 0);
}

EXPORT int mrclab_control(struct ibv_context *context, const uint64_t *args, int count, uint64_t *values)
{
    struct wire_reply reply;
    int error = session_call(&context_of(context)->session, WIRE_OP_CONTROL, args, count, NULL, &reply, NULL, 0);

    values[0] = reply.v0;
    values[1] = reply.v1;
    return error;
}

void *map_shared(int fd, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    close(fd);
    if (at == MAP_FAILED)
        return NULL;
    madvise(at, bytes, MADV_DONTFORK); /* a child must not post into its parent's rings */
    return at;
}

int session_open(struct session *session)
{
    struct wire_request request = {.op = WIRE_OP_HELLO, .version = WIRE_VERSION};
    struct wire_reply reply;
    int own[2], fds[4], error;

    memset(session, 0, sizeof(*session));
    pthread_mutex_init(&session->lock, NULL);
    session->socket = connect_service();
    if (session->socket < 0)
        return errno;
    own[0] = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    own[1] = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    error = own[0] < 0 || own[1] < 0 ? errno : exchange(session, &request, own, 2, &reply, fds, 4);
    for (int i = 0; i < 2; i++)
        if (own[i] >= 0)
            close(own[i]);
    if (error) {
        close(session->socket);
        return error;
    }
    session->doorbell = fds[1];
    session->wake = fds[2];
    session->events = fds[3];
    session->page = map_shared(fds[0], WIRE_SESSION_BYTES);
    if (!session->page) {
        session_close(session);
        return ENOMEM;
    }
    session->guid = reply.v0;
    session->mtu = (uint32_t)reply.v1;
    session->planes = (uint32_t)reply.v2;
    session->max_mpr = (uint32_t)reply.v3;
    session->max_wimm = (uint32_t)reply.v4;
    session->timeout = (uint8_t)reply.v5;
    session->linear_retry = (uint8_t)reply.v6;
    session->exponential_retry = (uint8_t)reply.v7;
    memcpy(session->gids, reply.data, sizeof(session->gids));
    return 0;
}

void session_close(struct session *session)
{
    if (session->page)
        munmap((void *)(uintptr_t)session->page, WIRE_SESSION_BYTES);
    close(session->doorbell);
    close(session->wake);
    close(session->events);
    close(session->socket);
    pthread_mutex_destroy(&session->lock);
}

bool session_died(struct session *session)
{
    struct pollfd state = {.fd = session->socket};

    if (!session->dead && poll(&state, 1, 0) == 1 && state.revents & (POLLHUP | POLLERR))
        session->dead = true;
    return session->dead;
}

/* Show the service that requests were posted. Wake the service if it sleeps. */
void session_ring(struct session *session)
{
    uint64_t one = 1;

    __atomic_add_fetch(&session->page[WIRE_SESSION_POSTED], 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (session->page[WIRE_SESSION_ASLEEP] &&
        __atomic_exchange_n(&session->page[WIRE_SESSION_ASLEEP], 0, __ATOMIC_SEQ_CST)) {
        ssize_t written = write(session->doorbell, &one, sizeof(one));
        (void)written;
    }
}
