//! The filters of other programs that may drop packets.

use std::collections::BTreeSet;

/// A filter that may drop packets of networks.
#[derive(PartialEq, Eq)]
pub(super) struct Filter {
    /// `forward: chain c, table inet t (ufw)`
    pub(super) place: String,
    pub(super) effect: Effect,
    pub(super) networks: BTreeSet<String>,
}

/// What a filter may do.
#[derive(PartialEq, Eq)]
pub(super) enum Effect {
    /// A chain may drop these packets of a network.
    Drops {
        packets: Vec<Packets>,
        is_of_bridge: bool,
        /// The rule has conditions that were not compared: it drops some of the packets.
        is_partial: bool,
    },
    /// A rule translates this published port.
    Translates(u16),
    /// The place tells it.
    Other,
}

/// The packets of a network, as a filter can select them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packets {
    New,
    Answers,
    Published,
    FromHost,
    ToHost,
}

impl Packets {
    fn text(self) -> &'static str {
        match self {
            Self::New => "new connections",
            Self::Answers => "answers",
            Self::Published => "published ports",
            Self::FromHost => "packets of the host",
            Self::ToHost => "packets to the host",
        }
    }
}

impl Filter {
    pub(super) fn line(&self) -> String {
        let Self { place, effect, networks } = self;
        let of_networks = || networks.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        match effect {
            Effect::Drops { packets, .. } => {
                let packets: Vec<_> = packets.iter().map(|packets| packets.text()).collect();
                format!("{place}: {} of {}", packets.join(", "), of_networks())
            }
            Effect::Translates(port) => format!("{place}: translates the published port {port}"),
            Effect::Other => place.clone(),
        }
    }
}
