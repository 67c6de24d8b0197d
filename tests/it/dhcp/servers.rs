//! The DHCP servers of others: kea, dnsmasq and udhcpd, as Debian has them, and what their lease tables say.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::LIMIT_S;
use super::service::Service;
use crate::world::{Container, with};

/// ISC kea, for one family of addresses.
pub struct Kea<'w> {
    pub service: Service<'w>,
    /// `4` or `6`.
    family: char,
    dir: String,
    config: Value,
}

/// One row of the lease file of kea. It is a log: the last row of an address counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub address: String,
    pub lifetime_s: u32,
    /// 0: leased, 1: declined, 2: reclaimed.
    pub state: u32,
}

/// Times of a lease that is not renewed during a test, for the subnet of kea.
pub fn long_lease() -> Value {
    json!({"valid-lifetime": 3600, "renew-timer": 1200, "rebind-timer": 2400})
}

/// How kea says that it serves.
const KEA_IS_READY: &str = "_STARTED";

impl<'w> Kea<'w> {
    /// A server on the link `link` of `place`, with the three addresses 10.1.0.10 to 10.1.0.12, leases of 120 s, renewal
    /// after 1 s and rebinding after 30 s. `more` is laid over the only subnet of its configuration.
    pub fn start(place: &Container<'w>, link: &str, more: Value) -> Self {
        let subnet = json!({
            "subnet": "10.1.0.0/24", "pools": [{"pool": "10.1.0.10 - 10.1.0.12"}],
            "option-data": [{"name": "routers", "data": "10.1.0.254"}],
        });
        Self::start_family('4', place, link, with(&subnet, more), json!({"authoritative": true}))
    }

    /// The same for DHCPv6, with the addresses fd00:1::10 to fd00:1::12.
    pub fn start6(place: &Container<'w>, link: &str, more: Value) -> Self {
        let subnet = json!({
            "subnet": "fd00:1::/64", "pools": [{"pool": "fd00:1::10 - fd00:1::12"}],
            "interface": link, "preferred-lifetime": 100,
        });
        place.wait_for_link_local(link);
        // A server identifier of its own for each place.
        let more_config = json!({"server-id": {"type": "EN", "enterprise-id": 2495, "identifier":
            if place.name == "outside" { "0A01" } else { "0A02" }, "persist": false}});
        Self::start_family('6', place, link, with(&subnet, more), more_config)
    }

    fn start_family(
        family: char,
        place: &Container<'w>,
        link: &str,
        subnet: Value,
        more: Value,
    ) -> Self {
        let times = json!({"valid-lifetime": 120, "renew-timer": 1, "rebind-timer": 30});
        let dir = format!("/run/kea{family}-{}", place.name);
        let program = format!("kea-dhcp{family}");
        let logger =
            json!({"name": program, "severity": "INFO", "output_options": [{"output": "stdout"}]});
        let mut config = json!({
            "interfaces-config": {"interfaces": [link]},
            "lease-database": {"type": "memfile", "name": format!("{dir}/leases"), "lfc-interval": 0},
            "expired-leases-processing": {"reclaim-timer-wait-time": 0},
            "loggers": [logger],
        });
        config[format!("subnet{family}")] = json!([with(&times, subnet)]);
        let file = format!("{dir}/config");
        let name = match (family, place.name.as_str()) {
            ('4', "outside") => "kea",
            ('4', _) => "other-kea",
            (_, "outside") => "kea6",
            _ => "other-kea6",
        };
        let words = [&program, "-c", &file];
        place.world.host(["mkdir", "-p", &dir]);
        let service = Service::new(place.world, name, Some(place.netns()), &words)
            .env("KEA_LOCKFILE_DIR", "none")
            .env("KEA_PIDFILE_DIR", &dir);
        let mut kea = Self { service, family, dir, config: with(&config, more) };
        kea.write();
        kea.service.start(KEA_IS_READY);
        kea
    }

    fn write(&self) {
        let file = format!("{}/config", self.dir);
        self.service
            .world
            .write(&file, json!({format!("Dhcp{}", self.family): self.config}).to_string());
    }

    /// Lays `more` over the subnet, while the server runs.
    pub fn change(&mut self, more: Value) {
        let subnet = &mut self.config[format!("subnet{}", self.family)][0];
        *subnet = with(subnet, more);
        self.write();
        let count = |log: &str| log.matches("_CONFIG_COMPLETE").count();
        let before = count(&self.service.log());
        self.service.signal(Signal::SIGHUP);
        let service = &self.service;
        service
            .world
            .within(LIMIT_S, "kea reads its configuration", || count(&service.log()) > before);
    }

    /// Ends the server, with a signal that lets it say nothing more.
    pub fn kill(&mut self) {
        self.service.end(Signal::SIGKILL);
    }

    /// Starts the server again, with the leases that it had.
    pub fn start_again(&mut self) {
        // The process that was killed has left its file, and another process can have its id.
        self.service.world.host(["sh", "-c", &format!("rm -f {}/*.pid", self.dir)]);
        self.service.start(KEA_IS_READY);
    }

    /// All rows, in the order in which they were written.
    pub fn rows(&self) -> Vec<Row> {
        let file = format!("{}/leases", self.dir);
        let text = self.service.world.read(&file);
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut lines = whole.lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        lines.map(|line| Row::new(&names, line)).collect()
    }

    /// The last row of each address.
    pub fn table(&self) -> Vec<Row> {
        let mut table: Vec<Row> = Vec::new();
        for row in self.rows() {
            table.retain(|other| other.address != row.address);
            table.push(row);
        }
        table
    }

    /// Addresses that are leased, whether or not their time is over.
    pub fn leased(&self) -> Vec<String> {
        let table = self.table().into_iter();
        let leased = table.filter(|row| row.lifetime_s > 0 && row.state == 0);
        leased.map(|row| row.address).collect()
    }

    /// Addresses that were leased and then released.
    pub fn released(&self) -> Vec<String> {
        let released = self.table().into_iter().filter(|row| row.lifetime_s == 0);
        released.map(|row| row.address).collect()
    }

    /// How often the server has given this address, renewals included.
    pub fn given(&self, address: &str) -> usize {
        let rows = self.rows();
        rows.iter().filter(|row| row.address == address && row.lifetime_s > 0).count()
    }

    /// Waits until the address was renewed `count` times more.
    pub fn wait_for_renewals(&self, address: &str, count: usize) {
        let begin = self.given(address);
        let is_renewed = || self.given(address) >= begin + count;
        self.service.world.within_or(LIMIT_S, is_renewed, || {
            format!("{count} renewals of {address}: {}", self.service.log_of_now())
        });
    }

    /// Waits until no address is leased, and the server was told so.
    #[track_caller]
    pub fn wait_for_release(&self, address: &str) {
        let is_released = || self.released().iter().any(|other| other == address);
        let what = format!("the server's table says that {address} is released");
        self.service.world.within(LIMIT_S, &what, is_released);
    }
}

impl Row {
    fn new(names: &[&str], line: &str) -> Self {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |name| fields[names.iter().position(|other| *other == name).unwrap()];
        Self {
            address: field("address").into(),
            lifetime_s: field("valid_lifetime").parse().unwrap(),
            state: field("state").parse().unwrap(),
        }
    }
}

/// dnsmasq on the link `sw` of `place`. Its leases have two minutes at least; `options` can set T1 and T2.
pub struct Dnsmasq<'w>(pub Service<'w>);

impl<'w> Dnsmasq<'w> {
    pub fn start(place: &Container<'w>, options: &[&str]) -> Self {
        let mut words = vec![
            "dnsmasq",
            "--no-daemon",
            "--conf-file=/dev/null",
            "--user=root",
            "--group=",
            "--port=0",
            "--interface=sw",
            "--bind-interfaces",
            "--no-ping",
            "--pid-file=",
            "--dhcp-authoritative",
            "--dhcp-leasefile=/run/dnsmasq.leases",
        ];
        words.extend(options);
        let mut service = Service::new(place.world, "dnsmasq", Some(place.netns()), &words);
        service.start("sockets bound exclusively");
        Self(service)
    }

    /// Lines of the lease file: time, MAC, address, host name, client id.
    pub fn leases(&self) -> Vec<String> {
        let path = self.0.world.path("/run/dnsmasq.leases");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// udhcpd of busybox on the link `sw` of `place`, with the addresses from 10.1.0.20 to 10.1.0.22. It sends no T1 and T2.
pub struct Udhcpd<'w>(pub Service<'w>);

impl<'w> Udhcpd<'w> {
    /// `options` are lines of its configuration.
    pub fn start(place: &Container<'w>, options: &str) -> Self {
        let config = format!(
            "start 10.1.0.20\nend 10.1.0.22\nmax_leases 3\ninterface sw\nlease_file /run/udhcpd.leases\n\
             pidfile /run/udhcpd.pid\nauto_time 0\nmin_lease 1\nopt subnet 255.255.255.0\n\
             opt router 10.1.0.254\n{options}\n"
        );
        let world = place.world;
        world.write("/run/udhcpd.conf", config);
        world.write("/run/udhcpd.leases", "");
        let words = ["udhcpd", "-f", "/run/udhcpd.conf"];
        let mut service = Service::new(world, "udhcpd", Some(place.netns()), &words);
        service.start("udhcpd: started");
        Self(service)
    }

    /// The table as `dumpleases` prints it.
    pub fn leases(&self) -> String {
        self.0.signal(Signal::SIGUSR1);
        let tool = ["dumpleases", "-f", "/run/udhcpd.leases"];
        self.0.world.tool(&tool, None).run().stdout
    }
}

/// A router that advertises fd00:1::/64 on the link `sw` of `place`, with `prefix` as further lines about it.
pub fn radvd<'w>(place: &Container<'w>, options: &str, prefix: &str) -> Service<'w> {
    let config = format!(
        "interface sw {{ AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; {options}\n\
         prefix fd00:1::/64 {{ AdvOnLink on; {prefix} }}; }};\n"
    );
    place.world.write("/run/radvd.conf", config);
    let words = ["radvd", "-n", "-C", "/run/radvd.conf", "-m", "stderr", "-p", "/run/radvd.pid"];
    let mut service = Service::new(place.world, "radvd", Some(place.netns()), &words);
    service.start("version");
    service
}
