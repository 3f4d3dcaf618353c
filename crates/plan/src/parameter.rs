//! The parameters of the model. They are five numbers with a meaning, and each number has an
//! assumed value before any measurement.

use serde::{Deserialize, Serialize};

/// The values of the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Share of a link's TCP payload that file data attains.
    pub link: f64,
    /// Share of the limits of disks, and of the provider's limits for disks, that transfers attain.
    pub disk: f64,
    /// Time for which a process waits in each request, besides the transfer, in microseconds.
    pub request_us: f64,
    /// How sharply the rate bends from the clients' limit to the servers' limit.
    pub saturation: f64,
    /// Relative standard deviation of the rates of equal servers.
    pub variability: f64,
}

/// A parameter with its meaning and its assumed value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// Name of the field in [`Parameters`].
    pub name: &'static str,
    /// Meaning of the parameter.
    pub meaning: &'static str,
    /// Assumed value.
    pub prior: f64,
    /// Assumed relative uncertainty of the assumed value.
    pub prior_deviation: f64,
}

/// All parameters, in the order of the vectors of the calibration.
pub const PARAMETERS: [Parameter; 5] = [
    Parameter {
        name: "link",
        meaning: "share of a link's TCP payload that file data attains",
        prior: 0.95,
        prior_deviation: 0.04,
    },
    Parameter {
        name: "disk",
        meaning: "share of the limits of disks and virtual machines that is attained",
        prior: 0.95,
        prior_deviation: 0.06,
    },
    Parameter {
        name: "request_us",
        meaning: "time of a request besides its transfer, in microseconds",
        prior: 300.0,
        prior_deviation: 0.5,
    },
    Parameter {
        name: "saturation",
        meaning: "sharpness of the bend between the clients' and the servers' limit",
        prior: 3.0,
        prior_deviation: 0.3,
    },
    Parameter {
        name: "variability",
        meaning: "relative standard deviation of the rates of equal servers; a run ends when the slowest server ends",
        prior: 0.03,
        prior_deviation: 0.7,
    },
];

/// Number of parameters.
pub(crate) const COUNT: usize = PARAMETERS.len();

impl Parameters {
    /// Returns the assumed values of the parameters before any measurement.
    pub fn prior() -> Self {
        Self::from_logs(&PARAMETERS.map(|it| it.prior.ln()))
    }

    /// Returns the values in the order of [`PARAMETERS`].
    pub fn values(&self) -> [f64; COUNT] {
        [self.link, self.disk, self.request_us, self.saturation, self.variability]
    }

    /// Returns the logarithms of the values. The calibration works with logarithms, since all
    /// values are positive.
    pub(crate) fn logs(&self) -> [f64; COUNT] {
        self.values().map(f64::ln)
    }

    /// Returns parameters from the logarithms of their values.
    pub(crate) fn from_logs(logs: &[f64; COUNT]) -> Self {
        let [link, disk, request_us, saturation, variability] = logs.map(f64::exp);
        Self { link, disk, request_us, saturation, variability }
    }
}
