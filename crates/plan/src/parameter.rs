//! The five parameters of the model. Each has a meaning, and a value that is assumed before any
//! measurement.

use serde::{Deserialize, Serialize};

/// The values of the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The rate of file data over a link, as a share of the maximum rate of TCP payload over this
    /// link.
    pub link: f64,
    /// The rate that transfers attain, as a share of the limits of disks. This share also applies
    /// to the provider's limits for disks.
    pub disk: f64,
    /// Time that a process waits in each request in addition to the transfer, in microseconds.
    pub request_us: f64,
    /// How sharp the transition is from the limit of the clients to the limit of the servers.
    pub saturation: f64,
    /// Relative standard deviation between the rates of equal servers.
    pub variability: f64,
}

/// A parameter, with its meaning and its assumed value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// Name of the field in [`Parameters`].
    pub name: &'static str,
    /// Meaning of the parameter.
    pub meaning: &'static str,
    /// The value that is assumed before any measurement.
    pub prior: f64,
    /// Relative uncertainty of the assumed value.
    pub prior_deviation: f64,
}

/// All parameters, in the order in which the vectors of the calibration contain them.
pub const PARAMETERS: [Parameter; 5] = [
    Parameter {
        name: "link",
        meaning: "share of the TCP payload of a link that file data uses",
        prior: 0.95,
        prior_deviation: 0.04,
    },
    Parameter {
        name: "disk",
        meaning: "share of the limits of disks and virtual machines that file data reaches",
        prior: 0.95,
        prior_deviation: 0.06,
    },
    Parameter {
        name: "request_us",
        meaning: "time of a request without the transfer of its data, in microseconds",
        prior: 300.0,
        prior_deviation: 0.5,
    },
    Parameter {
        name: "saturation",
        meaning: "sharpness of the transition from the clients' limit to the servers' limit",
        prior: 3.0,
        prior_deviation: 0.3,
    },
    Parameter {
        name: "variability",
        meaning: "relative standard deviation of the rates of equal servers; the slowest server \
                  determines the time of a run",
        prior: 0.03,
        prior_deviation: 0.7,
    },
];

/// Number of parameters.
pub(crate) const COUNT: usize = PARAMETERS.len();

impl Parameters {
    /// Returns the values that are assumed before any measurement.
    pub fn prior() -> Self {
        Self::from_logs(&PARAMETERS.map(|it| it.prior.ln()))
    }

    /// Returns the values of the parameters in the order of [`PARAMETERS`].
    pub fn values(&self) -> [f64; COUNT] {
        [self.link, self.disk, self.request_us, self.saturation, self.variability]
    }

    /// Returns the logarithms of the values. The calibration works with logarithms, because all
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
