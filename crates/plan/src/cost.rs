//! Computes the cost of a system per hour, per TB and per GB/s. The fields correspond to the
//! columns of published summaries of storage systems.

use crate::catalogue::Catalogue;
use crate::system::System;
use serde::Serialize;
use skep_types::Result;

/// A summary of a system's cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// Rate of sequential reads.
    pub seq_read_gb_s: f64,
    /// Rate of sequential writes.
    pub seq_write_gb_s: f64,
    /// Capacity that the redundancy leaves for data.
    pub capacity_tb: f64,
    /// Price of all servers and disks. `None` means that the catalogue lacks a price.
    pub usd_per_hour: Option<f64>,
    /// Price per TB of capacity.
    pub usd_per_tb_hour: Option<f64>,
    /// Price per GB/s of the rate of sequential writes.
    pub usd_per_gb_s_write_hour: Option<f64>,
}

/// Servers that run management and metadata separately from the storage servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MetadataServers {
    /// Name of the server type.
    pub server: String,
    /// Number of servers.
    pub count: u32,
}

impl Cost {
    /// Returns the cost of a system with the given rates of reads and writes. If `metadata` is
    /// `None`, the storage servers also run management and metadata.
    ///
    /// # Errors
    /// `NotFound` if the catalogue lacks a server type.
    pub fn of(
        catalogue: &Catalogue,
        system: &System,
        metadata: Option<&MetadataServers>,
        (read_mb_s, write_mb_s): (f64, f64),
    ) -> Result<Self> {
        let mut usd_per_hour = price(catalogue, system)?;
        if let Some(MetadataServers { server, count }) = metadata {
            let price = catalogue.server(server)?.usd_per_hour;
            usd_per_hour = usd_per_hour.zip(price).map(|(sum, it)| sum + f64::from(*count) * it);
        }
        let capacity_tb = system.capacity_tb();
        let seq_write_gb_s = write_mb_s / 1000.0;
        Ok(Self {
            seq_read_gb_s: read_mb_s / 1000.0,
            seq_write_gb_s,
            capacity_tb,
            usd_per_hour,
            usd_per_tb_hour: usd_per_hour.map(|it| it / capacity_tb),
            usd_per_gb_s_write_hour: usd_per_hour.map(|it| it / seq_write_gb_s),
        })
    }
}

/// Returns the price of the storage servers with their disks. `None` means that the catalogue lacks
/// a price.
fn price(catalogue: &Catalogue, system: &System) -> Result<Option<f64>> {
    let mut of_server = catalogue.server(&system.server)?.usd_per_hour;
    if system.disks.are_attached {
        let disks = system.disks.of.usd_per_hour.map(|it| it * f64::from(system.disks.count));
        of_server = of_server.zip(disks).map(|(server, disks)| server + disks);
    }
    Ok(of_server.map(|it| it * f64::from(system.servers)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published summary of two systems. The summary contains the measured rates of these
    /// systems.
    const PUBLISHED: &str = include_str!("../data/published/alces_cost.csv");

    #[test]
    fn computed_costs_equal_the_published_costs() {
        let catalogue = Catalogue::built_in();
        let metadata = MetadataServers { server: "c3.large".into(), count: 1 };
        for (line, (server, count)) in
            PUBLISHED.lines().skip(1).zip([("c3.8xlarge", 8), ("i2.8xlarge", 2)])
        {
            let printed: Vec<f64> = line.split(',').skip(1).map(|it| it.parse().unwrap()).collect();
            let system = System::of(&catalogue, server, count, None).unwrap();
            let rates = (printed[0] * 1000.0, printed[1] * 1000.0);
            let cost = Cost::of(&catalogue, &system, Some(&metadata), rates).unwrap();
            let usd = cost.usd_per_hour.unwrap();
            assert!((usd - printed[3]).abs() < 0.01, "{usd} instead of {}", printed[3]);
            // The published capacity is the formatted capacity in whole TiB.
            let tib = cost.capacity_tb / 1.0995;
            assert!((tib - printed[2]).abs() < 0.5, "{tib} instead of {}", printed[2]);
            // The published value 2.06 for option 1 contradicts the other columns: 15.41 / 6.81 is
            // 2.26.
            let per_rate = cost.usd_per_gb_s_write_hour.unwrap();
            assert!((per_rate / printed[5] - 1.0).abs() < 0.11, "{per_rate}");
        }
    }

    #[test]
    fn cost_is_unknown_if_a_price_is_unknown() {
        let catalogue = Catalogue::built_in();
        let system = System::of(&catalogue, "twelve-nvme-100g", 2, None).unwrap();
        let cost = Cost::of(&catalogue, &system, None, (1.0, 1.0)).unwrap();
        assert_eq!((cost.usd_per_hour, cost.usd_per_tb_hour), (None, None));
        let attached = System::of(&catalogue, "DS14_v2", 2, Some(("P30", 10))).unwrap();
        let usd = Cost::of(&catalogue, &attached, None, (1.0, 1.0)).unwrap().usd_per_hour;
        assert!((usd.unwrap() - 2.0 * (1.482 + 1.852)).abs() < 1e-9);
    }
}
