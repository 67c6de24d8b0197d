//! cnibox works in a root file system with cnibox and its links only.

use serde_json::{Value, json};

use super::{OUTSIDE, network, outside, owned};
use crate::world::{Container, Outcome, World, plugin_names, with};

const ROOT: &str = "/run/alone";

/// The kernel's own file systems, and the namespaces that the runtime made, are seen inside.
fn build_root(world: &World) {
    for directory in ["bin", "proc", "run/netns", "var/lib/cni"] {
        world.host(["mkdir", "-p", &format!("{ROOT}/{directory}")]);
    }
    world.host(["cp", "/run/bin/cnibox", &format!("{ROOT}/bin/cnibox")]);
    for name in plugin_names() {
        world.host(["ln", "-s", "cnibox", &format!("{ROOT}/bin/{name}")]);
    }
    world.host(["mount", "--rbind", "/proc", &format!("{ROOT}/proc")]);
    world.host(["mount", "--rbind", "/run/netns", &format!("{ROOT}/run/netns")]);
}

fn call(container: &Container<'_>, verb: &str, config: &Value) -> Outcome {
    let program = format!("/bin/{}", config["type"].as_str().unwrap());
    let call = container.world.tool(&["chroot", ROOT, &program], None).config(config);
    call.env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", &container.name)
        .env("CNI_NETNS", &container.netns())
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/bin")
        .run()
}

fn portmap() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "portmap",
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},
    })
}

fn firewall() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "firewall", "ingressPolicy": "same-bridge"})
}

#[test]
fn rules_need_no_other_program() {
    let world = World::new();
    let _outside = outside(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    build_root(&world);
    let config = network("bridge", json!({"ipMasq": true, "macspoofchk": true}));
    for container in [&c1, &c2] {
        let result = call(container, "ADD", &config).success();
        let prev = json!({"prevResult": result});
        call(container, "CHECK", &with(&config, prev.clone())).silence();
        // The ports of both would collide, and c1's are collected below as garbage.
        if container.name == "c2" {
            let config = with(&portmap(), prev.clone());
            call(container, "ADD", &config).success();
            call(container, "CHECK", &config).silence();
        }
        let config = with(&firewall(), prev);
        call(container, "ADD", &config).success();
        call(container, "CHECK", &config).silence();
        for address in OUTSIDE {
            container.ping(address);
        }
    }
    let chain = [portmap(), firewall(), config];
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]});
    for config in &chain {
        call(&c1, "GC", &with(config, valid.clone())).silence();
    }
    assert!(owned(&world) > 0);
    for config in &chain {
        call(&c2, "DEL", config).silence();
    }
    assert_eq!(owned(&world), 0);
    let left = world.host(["ls", "-A", &format!("{ROOT}/var/lib/cni/networks/net")]);
    assert_eq!(left, "last_reserved_ip.0\nlast_reserved_ip.1\nlock\n");
}
