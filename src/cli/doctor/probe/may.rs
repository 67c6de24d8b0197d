//! Which of the filters that may drop packets the probe has asked about.

use super::super::filter::{Effect, Filter, Packets};
use super::plan::{Direction, Plan, Question};

/// Removes what the answers decide: the chains of nf_tables that may drop the first packets of connections, of networks whose
/// packets were all sent. Nobody asked about answers, nor about the other packets of a rule that drops some, and the packets of
/// the probe pass no XDP program. `arrived`: the published ports whose packets arrive in the container.
pub(super) fn forget(
    filters: &mut Vec<Filter>,
    plan: &Plan<'_>,
    sent: &[&Question<'_>],
    arrived: &[u16],
) {
    // All questions were asked in time.
    let is_whole = sent.len() == plan.questions.len();
    filters.retain_mut(|filter| match &mut filter.effect {
        Effect::Other | Effect::Drops { is_partial: true, .. } => true,
        Effect::Translates(port) => !arrived.contains(port) || !plan.left_out.is_empty(),
        Effect::Drops { packets, is_of_bridge, .. } => {
            let is_of_network = |network: &str| filter.networks.contains(network);
            let is_left_out = plan.left_out.iter().any(|one| is_of_network(&one.network));
            let has = |direction| {
                let mut sent = sent.iter().filter(|question| is_of_network(question.who.network()));
                sent.any(|question| question.direction == direction)
            };
            packets.retain(|packets| match packets {
                _ if is_left_out || !is_whole => true,
                Packets::New if *is_of_bridge => !has(Direction::Container),
                Packets::New => !has(Direction::World),
                Packets::Published => !has(Direction::Port),
                Packets::Answers | Packets::FromHost | Packets::ToHost => true,
            });
            !packets.is_empty()
        }
    });
}
