// SPDX-License-Identifier: Apache-2.0
// The kernel floor: what the kernel itself needs for a container on a bridge. No configuration is read, nothing is
// looked up, nothing is allocated, nothing is printed; whatever a plugin takes beyond this is the plugin's own.
//
// ADD opens the namespace, makes a veth pair with one request (host end up and enslaved; peer named and placed in the
// container's namespace), enters it, and sends link-up, address and default route with one sendmsg.
// DEL enters the namespace and deletes the link.
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
#include <sys/socket.h>
#include <unistd.h>

#include <linux/if_addr.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>

// A namespace has only lo, which is 1. Asking for an index saves asking what it became.
enum { PEER_INDEX = 2 };

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

// Sends all requests with one system call; only the last is acknowledged. The kernel answers inside of it.
static void commit(const char *doing)
{
    batch.last->nlmsg_flags |= NLM_F_ACK;
    int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (netlink < 0 || send(netlink, batch.bytes, batch.length, 0) < 0)
        fail(doing);
    _Alignas(struct nlmsghdr) char answer[1024];
    if (recv(netlink, answer, sizeof answer, MSG_DONTWAIT) < 0)
        fail(doing);
    const struct nlmsgerr *verdict = NLMSG_DATA((struct nlmsghdr *)answer);
    if (verdict->error) {
        errno = -verdict->error;
        fail(doing);
    }
    batch.length = 0;
}

static void make_pair(int netns)
{
    struct ifinfomsg *host = begin(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, sizeof *host);
    // The kernel minds the index that is asked for the peer only if one is asked for this end, too.
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
    add_attribute(IFLA_NET_NS_FD, &netns, sizeof netns);
    close_attribute(peer);
    close_attribute(data);
    close_attribute(info);
    end();
    commit("make the veth pair");
}

static void configure(void)
{
    struct ifinfomsg *link = begin(RTM_NEWLINK, 0, sizeof *link);
    *link = (struct ifinfomsg){.ifi_index = PEER_INDEX, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
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
    commit("configure the container");
}

static void remove_link(void)
{
    struct ifinfomsg *link = begin(RTM_DELLINK, 0, sizeof *link);
    *link = (struct ifinfomsg){0};
    add_text(IFLA_IFNAME, setting("CNI_IFNAME"));
    end();
    commit("delete the link");
}

int main(void)
{
    bool adding = strcmp(setting("CNI_COMMAND"), "ADD") == 0;
    int netns = open(setting("CNI_NETNS"), O_RDONLY | O_CLOEXEC);
    if (netns < 0)
        fail("open the namespace");
    if (adding)
        make_pair(netns);
    if (setns(netns, CLONE_NEWNET) < 0)
        fail("enter the namespace");
    if (adding)
        configure();
    else
        remove_link();
    return 0;
}
