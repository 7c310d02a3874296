/* Loaded before wrk's own libraries: gives each of its connections the next of SOURCES_COUNT
 * loopback addresses, those of service.address_of, for wrk can bind none and the service knows its
 * callers by their addresses. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

int connect(int socket, const struct sockaddr *to, socklen_t length)
{
    static int (*real)(int, const struct sockaddr *, socklen_t);
    static unsigned next, count;
    if (!real) {
        const char *given = getenv("SOURCES_COUNT");
        count = given ? (unsigned)atoi(given) : 1;
        real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    }
    if (to->sa_family == AF_INET) {
        unsigned number = __sync_fetch_and_add(&next, 1) % count;
        unsigned place = number % 62500;
        struct sockaddr_in from = { .sin_family = AF_INET };
        int on = 1;
        from.sin_addr.s_addr = htonl(127u << 24 | (1 + number / 62500) << 16
                                     | place / 250 << 8 | (1 + number % 250));
        /* The port is chosen at connect, so that each address has all of them for each target. */
        setsockopt(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind(socket, (struct sockaddr *)&from, sizeof from) != 0)
            return -1;
    }
    return real(socket, to, length);
}
