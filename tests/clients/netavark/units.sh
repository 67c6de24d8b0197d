# Networks and containers that files configure: of `podman kube play` and of quadlet.

test_a_pod_of_kube_has_its_address() {
    podman network create --driver cnibox --subnet 10.50.0.0/24 web
    cat >/tmp/pod.yaml <<-YAML
	apiVersion: v1
	kind: Pod
	metadata: {name: p1}
	spec:
	  containers:
	  - name: page
	    image: $image
	    imagePullPolicy: Never
	    command: [/bin/httpd, -f, -p, "80", -h, /www]
	    ports: [{containerPort: 80, hostPort: 8080}]
	YAML
    tar --directory /tmp/image --create . | podman import --quiet --change 'ENTRYPOINT ["/bin/sleep", "1000"]' - localhost/infra
    printf '[engine]\ninfra_image = "localhost/infra"\n' >/tmp/infra.conf
    CONTAINERS_CONF_OVERRIDE=/tmp/infra.conf podman kube play --network web:ip=10.50.0.9 /tmp/pod.yaml
    eventually serves 127.0.0.1:8080 10.50.0.9
    podman kube down /tmp/pod.yaml
    nothing_is_left
}

# quadlet_files: a network of the driver, and a container in it that publishes a port.
quadlet_files() {
    mkdir -p /etc/containers/systemd
    cat >/etc/containers/systemd/web.network <<-'UNIT'
	[Network]
	Driver=cnibox
	Subnet=10.50.0.0/24
	Options=mtu=1400
	UNIT
    cat >/etc/containers/systemd/page.container <<-UNIT
	[Container]
	Image=$image
	Network=web.network:ip=10.50.0.9
	PublishPort=8080:80
	Exec=/bin/httpd -f -p 80 -h /www
	[Install]
	WantedBy=multi-user.target
	UNIT
}

test_the_commands_of_quadlet_serve_a_page() {
    local create run
    quadlet_files
    /usr/lib/systemd/system-generators/podman-system-generator --dryrun >/tmp/units
    cat /tmp/units
    create=$(sed -n 's/^ExecStart=\(.*network create.*\)/\1/p' /tmp/units)
    run=$(sed -n 's/^ExecStart=\(.*podman run.*\)/\1/p' /tmp/units)
    # Newer ones write = after some of the options.
    [[ ${create//=/ } == *'podman network create --ignore --driver cnibox --subnet 10.50.0.0/24 --opt mtu 1400 systemd-web' ]]
    [[ ${run//=/ } == *' --network systemd-web:ip 10.50.0.9 '*' --publish 8080:80 '* ]]
    # As the units call them: with --ignore, the second time is no error.
    eval "$create"
    eval "$create"
    # What systemd does: it replaces words, and makes the control group.
    run=${run//%N/page} run=${run//%t//run}
    eval "${run//--cgroups=split/}"
    eventually serves 127.0.0.1:8080 10.50.0.9
    [[ $(podman exec systemd-page ip link show eth0) == *'mtu 1400'* ]]
    podman rm --force --time 0 systemd-page
    nothing_is_left
}

# systemd is the first process of a machine in namespaces, in the network of the node. Its control group outlives them.
boot() {
    mkdir /cgroup
    mount -t cgroup2 cgroup2 /cgroup
    cgroup=$(mktemp -d "/cgroup/$(sed -n 's/^0:://p' /proc/self/cgroup)/netavark-XXXXXX")
    trap 'kill -KILL "$(pgrep -P "$machine")"; eventually find "$cgroup" -depth -type d -exec rmdir {} +' EXIT
    start_machine "$cgroup"
    eventually machine systemctl is-active multi-user.target
}

# The units of quadlet, as they are started at a boot.
boot_quadlet() {
    local target
    quadlet_files
    sed -i 's/^Exec=/PodmanArgs=--cgroups=disabled --stop-timeout=0\nExec=/' /etc/containers/systemd/page.container
    mount -t tmpfs tmpfs /etc/systemd
    mkdir /etc/systemd/system
    for target in sysinit basic shutdown umount network network-online timers multi-user; do
        echo '[Unit]' >"/etc/systemd/system/$target.target"
    done
    export SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/systemd/generator
    boot
    eventually serves 127.0.0.1:8080 10.50.0.9
}

test_the_units_of_quadlet_serve_a_page_after_a_boot() {
    boot_quadlet
    machine systemctl restart page
    eventually serves 127.0.0.1:8080 10.50.0.9
    machine systemctl stop page
    nothing_is_left
}
