# Published ports: protocols, ranges, addresses of the host, IPv6.

# echoes_udp NAME PORT: a server in the container's network answers each datagram with it.
echoes_udp() {
    nsenter --net="$(podman inspect --format '{{.NetworkSettings.SandboxKey}}' "$1")" python3 -c '
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", int(sys.argv[1])))
while True:
    data, client = server.recvfrom(100)
    server.sendto(data, client)' "$2" &
}

# answers ADDRESS PORT: the answer comes back to a client of this address.
answers() {
    local answer
    exec {answer}<>"/dev/udp/$1/$2"
    echo ask >&"$answer"
    [[ $(timeout 2 head -n 1 <&"$answer") == ask ]]
}

test_ports_of_udp_and_tcp_are_published_side_by_side() {
    podman network create --driver cnibox web
    web c1 --network web -p 8080:80/tcp -p 8080:80/udp -p 127.0.0.1:8081:81/udp
    serves 127.0.0.1:8080
    echoes_udp c1 80
    echoes_udp c1 81
    eventually answers 127.0.0.1 8080
    eventually answers 127.0.0.1 8081
    answers 10.89.0.1 8080
    not answers 10.89.0.1 8081
    serves 127.0.0.1:8080
    [[ $(podman port c1) == *'80/tcp -> 0.0.0.0:8080'* ]]
    [[ $(podman port c1) == *'80/udp -> 0.0.0.0:8080'* ]]
    [[ $(podman port c1) == *'81/udp -> 127.0.0.1:8081'* ]]
    podman rm --force --time 0 --all
    nothing_is_left
}

test_a_range_of_ports_is_published() {
    local port
    podman network create --driver cnibox web
    web c1 --network web -p 8080-8084:80-84 -p 127.0.0.1:9000-9001:80-81
    for port in 81 82 83 84; do podman exec --detach c1 /bin/httpd -f -p "$port" -h /www; done
    for port in 8080 8081 8082 8083 8084 9000 9001; do eventually serves "127.0.0.1:$port"; done
    serves 10.89.0.1:8084
    not page 10.89.0.1:9000 2
    not page 127.0.0.1:8085 2
    # Another container cannot have one of them.
    not podman run --name c2 --network web -p 8084:80 "$image" /bin/sleep 1
    podman rm --force --time 0 c1 c2
    nothing_is_left
}

test_ports_of_ipv6_are_published() {
    podman network create --driver cnibox --subnet 10.50.0.0/24 --subnet fd50::/64 web
    # podman itself binds each published port, so an address of the host must be there before.
    web c0 --network web
    web c1 --network web:ip=10.50.0.7,ip6=fd50::7 -p 8080:80 -p '[fd50::1]:8082:80'
    serves '[fd50::7]' '[fd50::1]:8080' 10.50.0.1:8080 127.0.0.1:8080 '[fd50::1]:8082'
    not page 10.50.0.1:8082 2
    # Nothing leads from ::1 to a container.
    not page '[::1]:8080' 2
    not podman run --name c2 --network web -p '[::1]:8081:80' "$image" /bin/sleep 1 2>/tmp/error
    grep '::1 leads to no container: the kernel does not forward packets from ::1' /tmp/error
    # Also for the container itself and for others.
    [[ $(podman exec c1 wget -qO- 'http://[fd50::1]:8080/') == hello ]]
    [[ $(podman run --rm --network web "$image" wget -qO- 'http://[fd50::1]:8080/') == hello ]]
    podman rm --force --time 0 --all
    nothing_is_left
}
