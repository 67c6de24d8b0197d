//! TCP connections that are open during a test.

use super::{Container, World};

/// A connection that is open during the test. The server sends each line back.
pub struct Connection<'w> {
    world: &'w World,
    name: &'static str,
}

impl<'w> Connection<'w> {
    pub fn open(client: &Container<'w>, name: &'static str, target: &str) -> Self {
        let connection = Self::begin(client, name, target);
        connection.carries("first");
        connection
    }

    /// The client has started, and there may be no answer yet.
    pub fn begin(client: &Container<'w>, name: &'static str, target: &str) -> Self {
        let script = format!(
            "mkfifo /run/{name}; exec 3<>/run/{name}; exec socat - {target} <&3 >/run/{name}.answers"
        );
        client.tool(["sh", "-ec", &script]).start();
        let connection = Self { world: client.world, name };
        connection.world.eventually("the client opens its queue", || {
            connection.world.path(format!("/run/{name}")).exists()
        });
        connection
    }

    #[track_caller]
    pub fn carries(&self, word: &str) {
        let Self { world, name } = self;
        // Without a client that reads, the queue does not open.
        world.host(["timeout", "60", "sh", "-ec", &format!("echo {word} >/run/{name}")]);
        let answers = world.path(format!("/run/{name}.answers"));
        world.eventually(&format!("connection {name} answers"), || {
            std::fs::read_to_string(&answers).is_ok_and(|text| text.ends_with(&format!("{word}\n")))
        });
    }
}

/// Sends each line back, in both families.
pub fn echo(container: &Container<'_>, port: u16) {
    for version in ["TCP4", "TCP6"] {
        let only = if version == "TCP6" { ",ipv6only=1" } else { "" };
        let listen = format!("{version}-LISTEN:{port},fork,reuseaddr{only}");
        container.tool(["socat", &listen, "SYSTEM:cat"]).start();
    }
    container.world.eventually("both servers listen", || {
        container.exec(["ss", "-Hntl", &format!("sport = :{port}")]).lines().count() == 2
    });
}
