// SPDX-License-Identifier: Apache-2.0
// The kernel floor: what the kernel itself needs for a container on a bridge. No configuration is read, nothing is
// looked up, nothing is allocated, nothing is printed; whatever a plugin takes beyond this is the plugin's own.
//
// ADD opens the namespace, makes a veth pair with one request (host end up and enslaved; peer named and placed in the
// container's namespace), enters it, and sends link-up, address and default route with one sendmsg.
// DEL enters the namespace and deletes the link.
//
// With FLOOR_DUTIES, a directory with the files `lock` and `last`, it also has the duties of every plugin, as far as
// that is the kernel's work: it reads a configuration (and does not look at it), looks at the bridge, reserves the address
// (a file of that name that is whole as soon as it is there, under the lock), names the owner of the host's end, makes
// that ignore router advertisements, asks once whether the port forwards, announces the address, looks whether packets
// are forwarded, and prints a result. DEL gives the address back.
//
// CNI_COMMAND, CNI_NETNS, CNI_IFNAME as for a plugin; FLOOR_MASTER (index of the bridge), FLOOR_HOST_NAME and
// FLOOR_HOST_INDEX, FLOOR_ADDRESS (with FLOOR_PREFIX_LENGTH) and FLOOR_GATEWAY stand for what a plugin reads and looks up.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/if_addr.h>
#include <linux/ip.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>

// A namespace has only lo, which is 1. Asking for an index saves asking what it became.
enum { PEER_INDEX = 2 };

static const char *duties;
static unsigned char mac[6];

static struct {
    _Alignas(struct nlmsghdr) char bytes[2048];
    size_t length;
    struct nlmsghdr *last;
} batch;

static void fail(const char *doing)
{
    fprintf(stderr, "floor: cannot %s: %s\n", doing, strerror(errno));
    exit(1);
}

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    if (!value) {
        fprintf(stderr, "floor: %s is not set\n", name);
        exit(1);
    }
    return value;
}

static void *append(size_t length)
{
    if (batch.length + NLMSG_ALIGN(length) > sizeof batch.bytes) {
        errno = ENOBUFS;
        fail("write a request");
    }
    void *at = batch.bytes + batch.length;
    batch.length += NLMSG_ALIGN(length);
    return at;
}

static void *begin(uint16_t type, uint16_t flags, size_t body)
{
    batch.last = append(sizeof *batch.last);
    *batch.last = (struct nlmsghdr){.nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | flags};
    return append(body);
}

static void end(void)
{
    batch.last->nlmsg_len = (uint32_t)(batch.bytes + batch.length - (char *)batch.last);
}

static struct rtattr *open_attribute(uint16_t type)
{
    struct rtattr *attribute = append(sizeof *attribute);
    attribute->rta_type = type;
    return attribute;
}

static void close_attribute(struct rtattr *attribute)
{
    attribute->rta_len = (uint16_t)(batch.bytes + batch.length - (char *)attribute);
}

static void add_attribute(uint16_t type, const void *value, size_t length)
{
    struct rtattr *attribute = open_attribute(type);
    memcpy(append(length), value, length);
    // The padding that `append` made is not part of the value.
    attribute->rta_len = (uint16_t)RTA_LENGTH(length);
}

static void add_text(uint16_t type, const char *text)
{
    add_attribute(type, text, strlen(text) + 1);
}

static int netlink_socket(void)
{
    int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (netlink < 0)
        fail("open a socket");
    return netlink;
}

// Sends all requests with one system call. The kernel answers inside of it: with a link, or whether all went well.
static void exchange(int netlink, const char *doing)
{
    _Alignas(struct nlmsghdr) char answer[8192];
    if (send(netlink, batch.bytes, batch.length, 0) < 0 || recv(netlink, answer, sizeof answer, MSG_DONTWAIT) < 0)
        fail(doing);
    const struct nlmsghdr *header = (struct nlmsghdr *)answer;
    const struct nlmsgerr *verdict = NLMSG_DATA(header);
    if (header->nlmsg_type == NLMSG_ERROR && verdict->error) {
        errno = -verdict->error;
        fail(doing);
    }
    batch.length = 0;
}

// Only the last is acknowledged.
static void commit(int netlink, const char *doing)
{
    batch.last->nlmsg_flags |= NLM_F_ACK;
    exchange(netlink, doing);
}

static void look_at(int netlink, int index)
{
    struct ifinfomsg *link = begin(RTM_GETLINK, 0, sizeof *link);
    *link = (struct ifinfomsg){.ifi_index = index};
    uint32_t without_statistics = RTEXT_FILTER_SKIP_STATS;
    add_attribute(IFLA_EXT_MASK, &without_statistics, sizeof without_statistics);
    end();
    exchange(netlink, "look at a link");
}

static void make_pair(int netlink, int netns)
{
    struct ifinfomsg *host = begin(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, sizeof *host);
    // The kernel uses the requested index of the peer only if this end has one, too.
    *host = (struct ifinfomsg){
        .ifi_index = atoi(setting("FLOOR_HOST_INDEX")), .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    add_text(IFLA_IFNAME, setting("FLOOR_HOST_NAME"));
    int32_t master = atoi(setting("FLOOR_MASTER"));
    add_attribute(IFLA_MASTER, &master, sizeof master);
    struct rtattr *info = open_attribute(IFLA_LINKINFO);
    add_text(IFLA_INFO_KIND, "veth");
    struct rtattr *data = open_attribute(IFLA_INFO_DATA);
    struct rtattr *peer = open_attribute(VETH_INFO_PEER);
    struct ifinfomsg *container = append(sizeof *container);
    *container = (struct ifinfomsg){.ifi_index = PEER_INDEX};
    add_text(IFLA_IFNAME, setting("CNI_IFNAME"));
    if (duties)
        add_attribute(IFLA_ADDRESS, mac, sizeof mac);
    add_attribute(IFLA_NET_NS_FD, &netns, sizeof netns);
    close_attribute(peer);
    close_attribute(data);
    close_attribute(info);
    end();
    commit(netlink, "make the veth pair");
}

static void configure(int netlink)
{
    struct ifinfomsg *link = begin(RTM_NEWLINK, 0, sizeof *link);
    *link = (struct ifinfomsg){.ifi_index = PEER_INDEX, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    if (duties) {
        struct rtattr *families = open_attribute(IFLA_AF_SPEC | NLA_F_NESTED);
        struct rtattr *ipv4 = open_attribute(AF_INET | NLA_F_NESTED);
        struct rtattr *settings = open_attribute(IFLA_INET_CONF | NLA_F_NESTED);
        uint32_t yes = 1;
        add_attribute(IPV4_DEVCONF_ARP_NOTIFY, &yes, sizeof yes);
        close_attribute(settings);
        close_attribute(ipv4);
        close_attribute(families);
    }
    end();

    struct in_addr address, gateway;
    if (!inet_aton(setting("FLOOR_ADDRESS"), &address) || !inet_aton(setting("FLOOR_GATEWAY"), &gateway)) {
        errno = EINVAL;
        fail("read the addresses");
    }
    struct ifaddrmsg *assigned = begin(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, sizeof *assigned);
    *assigned = (struct ifaddrmsg){.ifa_family = AF_INET,
                                   .ifa_prefixlen = (uint8_t)atoi(setting("FLOOR_PREFIX_LENGTH")),
                                   .ifa_index = PEER_INDEX};
    add_attribute(IFA_LOCAL, &address, sizeof address);
    add_attribute(IFA_ADDRESS, &address, sizeof address);
    end();

    struct rtmsg *route = begin(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, sizeof *route);
    *route = (struct rtmsg){.rtm_family = AF_INET,
                            .rtm_table = RT_TABLE_MAIN,
                            .rtm_protocol = RTPROT_BOOT,
                            .rtm_scope = RT_SCOPE_UNIVERSE,
                            .rtm_type = RTN_UNICAST};
    int32_t index = PEER_INDEX;
    add_attribute(RTA_GATEWAY, &gateway, sizeof gateway);
    add_attribute(RTA_OIF, &index, sizeof index);
    end();
    commit(netlink, "configure the container");
}

static void remove_link(int netlink)
{
    struct ifinfomsg *link = begin(RTM_DELLINK, 0, sizeof *link);
    *link = (struct ifinfomsg){0};
    add_text(IFLA_IFNAME, setting("CNI_IFNAME"));
    end();
    commit(netlink, "delete the link");
}

// --- Duties ----------------------------------------------------------------------------------------------------------

static int open_in(const char *directory, const char *name, int flags)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, flags | O_CLOEXEC, 0600);
    if (file < 0)
        fail(path);
    return file;
}

static void read_all(int file)
{
    char text[8192];
    while (read(file, text, sizeof text) > 0)
        ;
}

static void write_all(int file, const char *text)
{
    if (write(file, text, strlen(text)) < 0)
        fail("write");
}

static int lock(void)
{
    int file = open_in(duties, "lock", O_RDONLY);
    if (flock(file, LOCK_EX) < 0)
        fail("lock");
    return file;
}

static void reserve(void)
{
    const char *address = setting("FLOOR_ADDRESS");
    int locked = lock(), directory = open(duties, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int last = open_in(duties, "last", O_RDWR);
    read_all(last);
    int aside = open_in(duties, "aside", O_WRONLY | O_CREAT | O_EXCL);
    write_all(aside, "bench\r\neth0");
    close(aside);
    if (linkat(directory, "aside", directory, address, 0) < 0 || unlinkat(directory, "aside", 0) < 0)
        fail("reserve the address");
    if (pwrite(last, address, strlen(address), 0) < 0)
        fail("write");
    close(last);
    close(directory);
    close(locked);
}

static void release(void)
{
    char path[256];
    int locked = lock();
    snprintf(path, sizeof path, "%s/%s", duties, setting("FLOOR_ADDRESS"));
    if (unlink(path) < 0)
        fail(path);
    close(locked);
}

static void prepare_host_end(int netlink)
{
    char directory[256];
    snprintf(directory, sizeof directory, "/proc/sys/net/ipv6/conf/%s", setting("FLOOR_HOST_NAME"));
    int accept_ra = open_in(directory, "accept_ra", O_WRONLY);
    write_all(accept_ra, "0");
    close(accept_ra);
    struct ifinfomsg *link = begin(RTM_NEWLINK, 0, sizeof *link);
    *link = (struct ifinfomsg){.ifi_index = atoi(setting("FLOOR_HOST_INDEX"))};
    add_text(IFLA_IFALIAS, "cnibox bench-bridge bench-1 eth0");
    end();
    commit(netlink, "name the owner");
}

static void announce(int netlink)
{
    struct ifinfomsg *link = begin(RTM_NEWLINK, 0, sizeof *link);
    *link = (struct ifinfomsg){.ifi_index = PEER_INDEX};
    add_attribute(IFLA_ADDRESS, mac, sizeof mac);
    end();
    commit(netlink, "announce the address");
}

static void print_result(void)
{
    int forwarding = open_in("/proc/sys/net/ipv4", "ip_forward", O_RDONLY);
    read_all(forwarding);
    close(forwarding);
    write_all(STDOUT_FILENO, "{\"cniVersion\": \"1.0.0\"}\n");
}

// ---------------------------------------------------------------------------------------------------------------------

static void add(int netns)
{
    int host = netlink_socket();
    if (duties) {
        if (getrandom(mac, sizeof mac, 0) < 0)
            fail("get random bytes");
        mac[0] = (mac[0] & 0xfc) | 2;
        look_at(host, atoi(setting("FLOOR_MASTER")));
        reserve();
    }
    make_pair(host, netns);
    if (duties)
        prepare_host_end(host);
    if (setns(netns, CLONE_NEWNET) < 0)
        fail("enter the namespace");
    int container = netlink_socket();
    configure(container);
    if (duties) {
        look_at(host, atoi(setting("FLOOR_HOST_INDEX")));
        announce(container);
        print_result();
    }
}

static void del(int netns)
{
    if (setns(netns, CLONE_NEWNET) < 0)
        fail("enter the namespace");
    remove_link(netlink_socket());
    if (duties)
        release();
}

int main(void)
{
    duties = getenv("FLOOR_DUTIES");
    if (duties)
        read_all(STDIN_FILENO);
    int netns = open(setting("CNI_NETNS"), O_RDONLY | O_CLOEXEC);
    if (netns < 0)
        fail("open the namespace");
    if (strcmp(setting("CNI_COMMAND"), "ADD") == 0)
        add(netns);
    else
        del(netns);
    return 0;
}
