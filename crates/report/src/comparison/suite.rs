//! Races in several scenarios, in one table.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::ContestantRuns;
use crate::heat_table::{HeatCell, HeatTable};
use crate::numbers::ratio;
use crate::statistics::mean;
use crate::tables::aligned;

/// A contestant's part in one race of a suite.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SuiteEntry {
    /// Its name in all races of the suite.
    #[serde(skip)]
    pub name: String,
    /// Its learning rate.
    pub rate: f64,
    /// Whether that is the best at the edge of the rates that were tried; `None` if it was not tuned.
    pub rate_at_edge: Option<bool>,
    /// The time to target with each seed, in seconds; `None` if it missed the target.
    pub times: BTreeMap<u64, Option<f64>>,
}

impl SuiteEntry {
    /// The runs of a contestant under a name that it has in all races.
    pub fn new(name: String, contestant: &ContestantRuns) -> Self {
        let time = |run: &super::RunResult| (run.summary.seed, run.summary.time_to_target);
        let times = contestant.runs.iter().map(time).collect();
        SuiteEntry { name, rate: contestant.written_rate(), rate_at_edge: contestant.at_edge, times }
    }

    fn misses(&self) -> usize {
        self.times.values().filter(|time| time.is_none()).count()
    }

    /// The mean logarithm of its times with some of the seeds; `None` if it missed the target with any seed.
    fn log_time(&self, seeds: impl Fn(usize) -> bool) -> Option<f64> {
        let logs: Option<Vec<f64>> = self.times.values().map(|time| time.map(f64::ln)).collect();
        let chosen: Vec<f64> =
            logs?.into_iter().enumerate().filter(|(index, _)| seeds(*index)).map(|(_, log)| log).collect();
        (!chosen.is_empty()).then(|| mean(&chosen))
    }
}

/// The race in one scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct SuiteRace {
    /// The scenario's name.
    pub scenario: String,
    /// What it is, in words.
    pub description: String,
    /// The contestants. All have run with the same seeds.
    pub entries: Vec<SuiteEntry>,
}

impl SuiteRace {
    /// The fastest contestant by some of the seeds, given by their index. It must have reached the target with all.
    fn best(&self, seeds: impl Fn(usize) -> bool) -> Option<&SuiteEntry> {
        let timed = self.entries.iter().filter_map(|entry| Some((entry.log_time(&seeds)?, entry)));
        timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, entry)| entry)
    }

    /// The time of a contestant as a multiple of the best one's, as a geometric mean over the seeds. The best one for a
    /// half of the seeds is the fastest with the other half: luck with the seeds makes nobody the best. `None` if it missed
    /// the target with any seed.
    fn ratio(&self, entry: &SuiteEntry) -> Option<f64> {
        let several = entry.times.len() > 1;
        let log_ratio = |half: usize| {
            let judged = |index: usize| !several || index % 2 == half;
            let best = self.best(|index| !several || index % 2 != half)?;
            let seeds = (0..entry.times.len()).filter(|&index| judged(index)).count();
            Some(seeds as f64 * (entry.log_time(judged)? - best.log_time(judged)?))
        };
        let halves: Option<f64> = (0..if several { 2 } else { 1 }).map(log_ratio).sum();
        Some((halves? / entry.times.len() as f64).exp())
    }
}

/// What a contestant did in one scenario.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SuiteCell {
    /// Its time relative to the best one's.
    Ratio(f64),
    /// It missed the target in this number of runs.
    Missed(usize),
    /// It did not run.
    Absent,
}

impl SuiteCell {
    fn ratio(self) -> Option<f64> {
        if let SuiteCell::Ratio(ratio) = self { Some(ratio) } else { None }
    }

    fn text(self) -> String {
        match self {
            SuiteCell::Ratio(found) => ratio(found),
            SuiteCell::Missed(count) => format!("{count} miss"),
            SuiteCell::Absent => "-".into(),
        }
    }
}

/// A contestant in all scenarios.
struct SuiteRow {
    name: String,
    cells: Vec<SuiteCell>,
}

impl SuiteRow {
    /// The ratios; `None` if it has not reached the target in every run of every scenario.
    fn ratios(&self) -> Option<Vec<f64>> {
        self.cells.iter().map(|cell| cell.ratio()).collect()
    }

    fn mean(&self) -> Option<f64> {
        let logs: Vec<f64> = self.ratios()?.into_iter().map(f64::ln).collect();
        Some(mean(&logs).exp())
    }

    fn worst(&self) -> Option<f64> {
        self.ratios()?.into_iter().max_by(f64::total_cmp)
    }

    fn misses(&self) -> usize {
        self.cells.iter().filter(|cell| cell.ratio().is_none()).count()
    }
}

/// The races of all scenarios.
pub struct Suite {
    races: Vec<SuiteRace>,
    /// The contestants: first those that reached every target, by the mean of their ratios.
    rows: Vec<SuiteRow>,
}

impl Suite {
    /// Compares the contestants over all races.
    pub fn new(races: Vec<SuiteRace>) -> Self {
        let mut names: Vec<&String> = Vec::new();
        for entry in races.iter().flat_map(|race| &race.entries) {
            if !names.contains(&&entry.name) {
                names.push(&entry.name);
            }
        }
        let cell = |race: &SuiteRace, name: &str| match race.entries.iter().find(|entry| entry.name == name) {
            Some(entry) => race.ratio(entry).map_or(SuiteCell::Missed(entry.misses()), SuiteCell::Ratio),
            None => SuiteCell::Absent,
        };
        let row =
            |name: &String| SuiteRow { name: name.clone(), cells: races.iter().map(|race| cell(race, name)).collect() };
        let mut rows: Vec<SuiteRow> = names.into_iter().map(row).collect();
        let order = |row: &SuiteRow| (row.misses(), row.mean().unwrap_or(f64::INFINITY));
        rows.sort_by(|a, b| {
            let ((a_misses, a_mean), (b_misses, b_mean)) = (order(a), order(b));
            a_misses.cmp(&b_misses).then(a_mean.total_cmp(&b_mean))
        });
        Suite { races, rows }
    }

    /// A row per contestant and a column per scenario, then what the columns are.
    pub fn table(&self) -> String {
        let numbers = (1..=self.races.len()).map(|number| number.to_string());
        let head = std::iter::once("contestant".into()).chain(numbers).chain(["mean".into(), "worst".into()]);
        let or_dash = |value: Option<f64>| value.map_or("-".into(), ratio);
        let row = |row: &SuiteRow| {
            let cells = row.cells.iter().map(|cell| cell.text());
            let ends = [or_dash(row.mean()), or_dash(row.worst())];
            std::iter::once(row.name.clone()).chain(cells).chain(ends).collect::<Vec<String>>()
        };
        let rows: Vec<Vec<String>> = std::iter::once(head.collect()).chain(self.rows.iter().map(row)).collect();
        let mut text = aligned(rows) + "\n";
        for (number, race) in (1..).zip(&self.races) {
            let best = race
                .best(|_| true)
                .map_or("nobody reached the target in every run".into(), |best| format!("best: {}", best.name));
            let described = if race.description.is_empty() { String::new() } else { format!(" {}", race.description) };
            text += &format!("\n{number:>2}  {}:{described} ({best})", race.scenario);
        }
        text + "\n\n" + self.explanation()
    }

    fn explanation(&self) -> &'static str {
        if self.races.iter().flat_map(|race| &race.entries).any(|entry| entry.times.len() < 2) {
            "A cell is the time to target relative to the best contestant's. With one seed, the best one is chosen by the \
             seed that it is judged by: give more."
        } else {
            "A cell is the time to target relative to the best contestant's, over all seeds. Who is best for one half of \
             the seeds is chosen by the other half."
        }
    }

    /// The same as objects: one for the suite, then one per contestant.
    pub fn json_lines(&self) -> Vec<Value> {
        let scenario = |race: &SuiteRace| {
            json!({
                "name": race.scenario,
                "description": race.description,
                "best": race.best(|_| true).map(|best| &best.name),
            })
        };
        let head = json!({ "scenarios": self.races.iter().map(scenario).collect::<Vec<_>>() });
        let part = |(race, cell): (&SuiteRace, &SuiteCell), name: &str| {
            let entry = race.entries.iter().find(|entry| entry.name == name)?;
            let mut part = json!(entry);
            part["ratio"] = json!(cell.ratio());
            Some((race.scenario.clone(), part))
        };
        let row = |row: &SuiteRow| {
            let parts: serde_json::Map<String, Value> =
                self.races.iter().zip(&row.cells).filter_map(|both| part(both, &row.name)).collect();
            json!({ "scheme": row.name, "mean": row.mean(), "worst": row.worst(), "scenarios": parts })
        };
        std::iter::once(head).chain(self.rows.iter().map(row)).collect()
    }

    /// The table as a picture.
    pub fn figure(&self) -> HeatTable {
        let cell = |cell: &SuiteCell| HeatCell { text: cell.text(), value: cell.ratio() };
        let end = |value: Option<f64>| HeatCell { text: value.map_or("-".into(), ratio), value };
        let rows = self.rows.iter().map(|row| {
            let cells = row.cells.iter().map(cell).chain([end(row.mean()), end(row.worst())]).collect();
            (row.name.clone(), cells)
        });
        let columns = self.races.iter().map(|race| race.scenario.clone()).chain(["mean".into(), "worst".into()]);
        HeatTable {
            title: "Time to target relative to the best contestant".into(),
            columns: columns.collect(),
            separate: 2,
            rows: rows.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, times: &[Option<f64>]) -> SuiteEntry {
        let times = (1..).zip(times.iter().copied()).collect();
        SuiteEntry { name: name.into(), rate: 0.1, rate_at_edge: None, times }
    }

    fn race(scenario: &str, entries: Vec<SuiteEntry>) -> SuiteRace {
        SuiteRace { scenario: scenario.into(), description: format!("What {scenario} is."), entries }
    }

    fn cells(suite: &Suite, name: &str) -> Vec<SuiteCell> {
        suite.rows.iter().find(|row| row.name == name).unwrap().cells.clone()
    }

    #[test]
    fn ratios_are_to_the_best_of_the_other_half_of_the_seeds() {
        // Contestant a is best with the seeds 1 and 3, b with 2 and 4: judged by the other half, neither is.
        let a = entry("a", &[Some(1.0), Some(4.0), Some(1.0), Some(4.0)]);
        let b = entry("b", &[Some(4.0), Some(1.0), Some(4.0), Some(1.0)]);
        let steady = entry("steady", &[Some(2.0); 4]);
        let suite = Suite::new(vec![race("luck", vec![a, b, steady])]);
        // The reference is b with seeds 1 and 3, and a with seeds 2 and 4: 4 s each.
        for (name, expected) in [("a", 0.5), ("b", 0.5), ("steady", 0.5)] {
            let SuiteCell::Ratio(found) = cells(&suite, name)[0] else { panic!("{name}") };
            assert!((found - expected).abs() < 1e-12, "{name}: {found}");
        }
    }

    #[test]
    fn a_steady_best_has_the_ratio_one_and_the_others_their_factor() {
        let times = [3.0, 5.0, 9.0, 2.0, 7.0];
        let scaled = |name: &str, factor: f64| entry(name, &times.map(|time| Some(factor * time)));
        let races = vec![
            race("first", vec![scaled("bsp", 1.0), scaled("asp", 2.0), scaled("ssp", 3.0)]),
            race("second", vec![scaled("bsp", 8.0), scaled("asp", 2.0), scaled("ssp", 3.0)]),
        ];
        let suite = Suite::new(races);
        let found: Vec<(&str, f64, f64)> =
            suite.rows.iter().map(|row| (row.name.as_str(), row.mean().unwrap(), row.worst().unwrap())).collect();
        let expected = [("asp", 2.0_f64.sqrt(), 2.0), ("bsp", 2.0, 4.0), ("ssp", 4.5_f64.sqrt(), 3.0)];
        for ((name, mean, worst), expected) in found.iter().zip(expected) {
            assert_eq!(*name, expected.0);
            assert!((mean - expected.1).abs() < 1e-12 && (worst - expected.2).abs() < 1e-12, "{name} {mean} {worst}");
        }
        let table = suite.table();
        let line = |name: &str| {
            table.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(line("asp"), ["asp", "2.00", "1.00", "1.41", "2.00"]);
        assert!(table.contains(" 1  first: What first is. (best: bsp)"), "{table}");
    }

    #[test]
    fn who_misses_a_target_has_no_ratio_and_no_mean() {
        let reached = |name: &str, time: f64| entry(name, &[Some(time); 3]);
        let races = vec![
            race("easy", vec![reached("bsp", 2.0), reached("asp", 1.0)]),
            race("hard", vec![reached("bsp", 2.0), entry("asp", &[Some(0.1), None, Some(0.1)])]),
            race("none", vec![entry("bsp", &[None; 3]), entry("asp", &[None; 3])]),
        ];
        let suite = Suite::new(races[..2].to_vec());
        assert_eq!(cells(&suite, "asp"), [SuiteCell::Ratio(1.0), SuiteCell::Missed(1)]);
        assert_eq!(cells(&suite, "bsp"), [SuiteCell::Ratio(2.0), SuiteCell::Ratio(1.0)]);
        assert_eq!(suite.rows[0].name, "bsp", "who reaches every target comes first");
        let row = &suite.rows[1];
        assert_eq!((row.mean(), row.worst()), (None, None));
        assert!(suite.table().contains("1 miss"), "{}", suite.table());
        let all = Suite::new(races);
        assert_eq!(cells(&all, "bsp")[2], SuiteCell::Missed(3));
        assert!(all.table().contains("(nobody reached the target in every run)"), "{}", all.table());
        let lines = suite.json_lines();
        assert_eq!(lines[0]["scenarios"][1]["best"], "bsp");
        let asp = lines.iter().find(|line| line["scheme"] == "asp").unwrap();
        assert_eq!(asp["scenarios"]["hard"]["times"], json!({ "1": 0.1, "2": null, "3": 0.1 }));
        assert!(asp["mean"].is_null() && asp["scenarios"]["easy"]["ratio"] == 1.0, "{asp}");
    }

    #[test]
    fn with_one_seed_the_best_is_judged_by_its_own_seed() {
        let suite = Suite::new(vec![race("one", vec![entry("a", &[Some(1.0)]), entry("b", &[Some(3.0)])])]);
        assert_eq!(cells(&suite, "a"), [SuiteCell::Ratio(1.0)]);
        assert!(suite.table().contains("With one seed"), "{}", suite.table());
    }
}
