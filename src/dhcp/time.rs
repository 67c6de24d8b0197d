//! Times of leases and waits.

use std::ops::{Add, Div, Mul, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::kernel::clock;

/// A length of time, or a time since boot, in milliseconds. Sums and products stop at the largest value, differences at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(u64);

impl Time {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self(u64::MAX);

    /// The time since boot, on CLOCK_BOOTTIME.
    pub fn now() -> Self {
        clock::since_boot().into()
    }

    /// The earlier of two times. `None` means never.
    pub fn first(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            _ => one.or(other),
        }
    }

    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub const fn as_secs(self) -> u64 {
        self.0 / 1000
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Time {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Mul<u32> for Time {
    type Output = Self;

    fn mul(self, factor: u32) -> Self {
        Self(self.0.saturating_mul(factor.into()))
    }
}

impl Div<u32> for Time {
    type Output = Self;

    fn div(self, divisor: u32) -> Self {
        Self(self.0 / u64::from(divisor))
    }
}

/// Rounds down to whole milliseconds.
impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self::from_secs(time.as_secs()) + Self(time.subsec_millis().into())
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Self {
        Self::from_millis(time.0)
    }
}
