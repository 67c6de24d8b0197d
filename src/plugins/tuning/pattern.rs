//! Regular expressions as people write them into the allowlist: literals, `.`, classes, `* + ?`, groups, alternation, `^`
//! and `$`, escapes; with the meaning that RE2 gives them. What else RE2 knows is refused, and never taken for a literal.
//!
//! A pattern becomes a program for a machine that is in several states at once, so that the time is that of the text's
//! length times the pattern's, whatever the pattern.

use std::iter::Peekable;
use std::str::Chars;

pub struct Pattern(Vec<Step>);

enum Step {
    /// One character of these.
    One(Set),
    /// On at two places, as distances from here.
    Fork(isize, isize),
    Jump(isize),
    Start,
    End,
}

/// Characters in, or not in, some ranges.
struct Set {
    is_negated: bool,
    ranges: Vec<(char, char)>,
}

/// How deep groups may be in one another: they are read by recursion.
const DEPTH_MAX: usize = 100;
/// How long a pattern may be, in bytes.
const LENGTH_MAX: usize = 4096;

impl Pattern {
    /// The error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LENGTH_MAX {
            return Err(format!("it is longer than {LENGTH_MAX} bytes"));
        }
        let mut parser = Parser { rest: text.chars().peekable(), steps: Vec::new(), depth: 0 };
        parser.alternatives()?;
        match parser.rest.next() {
            Some(_) => Err("there is a ) too many".into()),
            None => Ok(Self(parser.steps)),
        }
    }

    /// Whether it is found anywhere in the text.
    pub fn is_in(&self, text: &str) -> bool {
        let mut states = vec![false; self.0.len() + 1];
        let mut rest = text.chars();
        let mut is_start = true;
        loop {
            let next = rest.next();
            self.enter(0, &mut states, is_start, next.is_none());
            if states[self.0.len()] {
                return true;
            }
            let Some(c) = next else { return false };
            is_start = false;
            let is_end = rest.as_str().is_empty();
            let before = std::mem::replace(&mut states, vec![false; self.0.len() + 1]);
            for (at, step) in self.0.iter().enumerate().filter(|(at, _)| before[*at]) {
                if let Step::One(set) = step
                    && set.has(c)
                {
                    self.enter(at + 1, &mut states, is_start, is_end);
                }
            }
        }
    }

    /// Into a state, and into those that it leads to without a character.
    fn enter(&self, at: usize, states: &mut [bool], is_start: bool, is_end: bool) {
        let mut waiting = vec![at];
        while let Some(at) = waiting.pop() {
            if std::mem::replace(&mut states[at], true) {
                continue;
            }
            match self.0.get(at) {
                Some(Step::Fork(one, other)) => {
                    waiting.extend([at.wrapping_add_signed(*one), at.wrapping_add_signed(*other)]);
                }
                Some(Step::Jump(distance)) => waiting.push(at.wrapping_add_signed(*distance)),
                Some(Step::Start) if is_start => waiting.push(at + 1),
                Some(Step::End) if is_end => waiting.push(at + 1),
                _ => {}
            }
        }
    }
}

impl Set {
    fn of(c: char) -> Self {
        Self { is_negated: false, ranges: vec![(c, c)] }
    }

    fn has(&self, c: char) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != self.is_negated
    }
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    steps: Vec<Step>,
    depth: usize,
}

impl Parser<'_> {
    /// Up to the end, or the `)` of the group.
    fn alternatives(&mut self) -> Result<(), String> {
        let mut jumps = Vec::new();
        loop {
            let start = self.steps.len();
            self.sequence()?;
            if self.rest.next_if_eq(&'|').is_none() {
                break;
            }
            self.wrap(start, |length| Step::Fork(1, length + 2));
            jumps.push(self.steps.len());
            self.steps.push(Step::Jump(0));
        }
        for jump in jumps {
            self.steps[jump] = Step::Jump(distance(self.steps.len() - jump));
        }
        Ok(())
    }

    fn sequence(&mut self) -> Result<(), String> {
        while let Some(c) = self.rest.next_if(|c| !matches!(c, '|' | ')')) {
            let start = self.steps.len();
            let step = match c {
                '(' => {
                    self.group()?;
                    self.repetition(start)?;
                    continue;
                }
                '^' => Step::Start,
                '$' => Step::End,
                '.' => Step::One(Set { is_negated: true, ..Set::of('\n') }),
                '[' => Step::One(self.class()?),
                '\\' => self.escape()?,
                '*' | '+' | '?' | '{' => return Err(format!("there is nothing before {c}")),
                literal => Step::One(Set::of(literal)),
            };
            self.steps.push(step);
            self.repetition(start)?;
        }
        Ok(())
    }

    fn group(&mut self) -> Result<(), String> {
        if self.rest.next_if_eq(&'?').is_some() && self.rest.next() != Some(':') {
            return Err("of groups that begin with (? there is only (?:".into());
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("there are more than {DEPTH_MAX} groups in one another"));
        }
        self.alternatives()?;
        self.depth -= 1;
        self.rest.next_if_eq(&')').map(drop).ok_or_else(|| "there is no ) for a (".into())
    }

    /// What follows the piece that begins at `start`.
    fn repetition(&mut self, start: usize) -> Result<(), String> {
        match self.rest.peek() {
            Some('*') => {
                self.wrap(start, |length| Step::Fork(1, length + 2));
                self.steps.push(Step::Jump(-distance(self.steps.len() - start)));
            }
            Some('+') => {
                let length = distance(self.steps.len() - start);
                self.steps.push(Step::Fork(-length, 1));
            }
            Some('?') => self.wrap(start, |length| Step::Fork(1, length + 1)),
            Some('{') => return Err("repetition with { is not known here".into()),
            _ => return Ok(()),
        }
        self.rest.next();
        // As few as possible or as many: for whether there is a match, it is the same.
        self.rest.next_if_eq(&'?');
        match self.rest.peek() {
            Some(c @ ('*' | '+' | '?' | '{')) => Err(format!("there is a {c} too many")),
            _ => Ok(()),
        }
    }

    /// Puts a step before the piece that begins at `start`. All distances in it stay.
    fn wrap(&mut self, start: usize, step: fn(isize) -> Step) {
        let length = self.steps.len() - start;
        self.steps.insert(start, step(distance(length)));
    }

    /// After the `[`.
    fn class(&mut self) -> Result<Set, String> {
        let is_negated = self.rest.next_if_eq(&'^').is_some();
        let mut set = Set { is_negated, ranges: Vec::new() };
        loop {
            let first = self.rest.next().ok_or("there is no ] for a [")?;
            let first = match first {
                // As the first character it is one like the others.
                ']' if !set.ranges.is_empty() => return Ok(set),
                '[' if self.rest.peek() == Some(&':') => {
                    return Err("classes with names are not known here".into());
                }
                '\\' => match self.escaped()? {
                    Escaped::Literal(c) => c,
                    Escaped::Class(class) if !class.is_negated => {
                        set.ranges.extend(class.ranges);
                        continue;
                    }
                    Escaped::Class(_) => return Err("a negated class inside of [ ]".into()),
                },
                c => c,
            };
            let last = self.end_of_range(first)?;
            set.ranges.push((first, last));
        }
    }

    fn end_of_range(&mut self, first: char) -> Result<char, String> {
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('-') || ahead.peek().is_none_or(|c| *c == ']') {
            return Ok(first);
        }
        self.rest = ahead;
        let last = match self.rest.next() {
            Some('\\') => match self.escaped()? {
                Escaped::Literal(c) => c,
                Escaped::Class(_) => return Err("a range that ends with a class".into()),
            },
            Some(c) => c,
            None => return Err("there is no ] for a [".into()),
        };
        if first > last { Err(format!("the range {first}-{last} is empty")) } else { Ok(last) }
    }

    fn escape(&mut self) -> Result<Step, String> {
        if self.rest.next_if_eq(&'A').is_some() {
            return Ok(Step::Start);
        }
        if self.rest.next_if_eq(&'z').is_some() {
            return Ok(Step::End);
        }
        Ok(Step::One(match self.escaped()? {
            Escaped::Literal(c) => Set::of(c),
            Escaped::Class(set) => set,
        }))
    }

    /// After the `\`.
    fn escaped(&mut self) -> Result<Escaped, String> {
        let c = self.rest.next().ok_or("it ends with a \\")?;
        let ranges: &[(char, char)] = match c.to_ascii_lowercase() {
            'd' => &[('0', '9')],
            'w' => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
            's' => &[('\t', '\n'), ('\x0c', '\r'), (' ', ' ')],
            _ if c.is_ascii() && !c.is_ascii_alphanumeric() => return Ok(Escaped::Literal(c)),
            _ => return Err(format!("\\{c} is not known here")),
        };
        let is_negated = c.is_ascii_uppercase();
        Ok(Escaped::Class(Set { is_negated, ranges: ranges.to_vec() }))
    }
}

enum Escaped {
    Literal(char),
    Class(Set),
}

/// Patterns are short.
fn distance(steps: usize) -> isize {
    isize::try_from(steps).unwrap_or(isize::MAX)
}

#[cfg(test)]
mod tests;
