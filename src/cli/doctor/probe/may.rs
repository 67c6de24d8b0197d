//! Which of the filters that may drop packets the probe has asked about.

use super::super::finding::{Finding, Findings, Harm};
use super::plan::{Direction, Plan, Question};

/// The packets that were sent.
pub(super) struct Asked<'a> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) sent: &'a [&'a Question<'a>],
}

/// What the check `filters` says of a rule that translates a published port.
const TRANSLATES: &str = "translates the published port ";

impl Asked<'_> {
    /// Removes from `found` what the answers decide: the chains of nf_tables that may drop the first packets of connections, of
    /// networks whose packets were all sent. Nobody asked about answers, and the packets of the probe pass no XDP program.
    pub(super) fn forget(&self, found: &mut Findings) {
        let has_lines = |finding: &Finding| finding.harm == Harm::May && !finding.lines.is_empty();
        for finding in found.0.iter_mut().filter(|finding| has_lines(finding)) {
            // The operator has called it.
            finding.fix.clear();
            let lines = std::mem::take(&mut finding.lines);
            finding.lines = lines.into_iter().filter_map(|line| self.left(line)).collect();
            if finding.lines.is_empty() {
                finding.what.clear();
            }
        }
        found.0.retain(|finding| !finding.what.is_empty());
    }

    /// What is left of a line, such as `forward: chain c, table inet t (nft): new connections, answers of a`.
    fn left(&self, line: String) -> Option<String> {
        let Some((place, end)) = line.rsplit_once(": ") else { return Some(line) };
        if end.starts_with(TRANSLATES) {
            return Some(line).filter(|_| !self.plan.left_out.is_empty() || !self.is_whole());
        }
        let Some((kinds, network)) = end.rsplit_once(" of ") else { return Some(line) };
        let has = |direction| {
            let mut of_network =
                self.sent.iter().filter(|question| **question.who.network() == *network);
            of_network.any(|question| question.direction == direction)
        };
        let is_bridge = place.contains("table bridge ");
        let is_asked = |kind: &str| match kind {
            "new connections" if is_bridge => has(Direction::Container),
            "new connections" => has(Direction::World),
            "published ports" => has(Direction::Port),
            _ => false,
        };
        let is_left_out = self.plan.left_out.iter().any(|one| *one.network == *network);
        if is_left_out || !self.is_whole() {
            return Some(line);
        }
        let kinds: Vec<&str> = kinds.split(", ").filter(|kind| !is_asked(kind)).collect();
        (!kinds.is_empty()).then(|| format!("{place}: {} of {network}", kinds.join(", ")))
    }

    /// All questions were asked in time.
    fn is_whole(&self) -> bool {
        self.sent.len() == self.plan.questions.len()
    }
}
