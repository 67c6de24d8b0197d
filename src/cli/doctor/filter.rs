//! The filters of other programs that may drop packets, and the finding that lists them.

use std::collections::BTreeSet;

use super::finding::{Finding, Harm};

/// A filter that may drop packets of networks.
pub(super) struct Filter {
    /// `forward: chain c, table inet t (ufw)`
    pub(super) place: String,
    pub(super) effect: Effect,
    pub(super) networks: BTreeSet<String>,
}

/// What a filter may do.
pub(super) enum Effect {
    /// A chain may drop these packets of a network.
    Drops { packets: Vec<Packets>, is_of_bridge: bool },
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
    fn line(&self) -> String {
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

/// The finding that lists these filters. `fix` is what to type.
pub(super) fn finding(filters: &[Filter], fix: &str) -> Option<Finding> {
    let networks: BTreeSet<&String> = filters.iter().flat_map(|filter| &filter.networks).collect();
    let networks = networks.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let why = "Containers do not reach other networks, or their ports do not answer, if one of them drops their packets.";
    (!filters.is_empty()).then(|| Finding {
        harm: Harm::May,
        what: format!("filters may drop packets of {networks}"),
        why,
        fix: fix.into(),
        lines: filters.iter().map(Filter::line).collect(),
        ..Finding::default()
    })
}
