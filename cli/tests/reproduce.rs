//! `paceline reproduce` as its users see it.

mod common;

use common::{json, refused};

#[test]
fn exact_planners_always_find_the_optimum() {
    let records = json(&["reproduce", "zipline-table3", "--seeds", "1,2", "--json"]);
    let optimal = |name: &str| {
        let shares = records.iter().filter(|record| record["algorithm"] == name);
        shares.map(|record| record["optimal"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    for exact in ["zipline", "zipline-basic", "zipline-opt", "zipline-opt-bs"] {
        assert_eq!(optimal(exact), [1.0; 10], "{exact}");
    }
    assert!(optimal("grid-scan").iter().sum::<f64>() < 5.0);
}

#[test]
fn unknown_experiments_are_refused_with_those_there_are() {
    let message = refused(&["reproduce", "zipline-table9"]);
    assert!(message.contains("zipline-table9") && message.contains("zipline-table3"), "{message}");
}

#[test]
fn who_sees_the_resources_predicts_best() {
    let records = json(&["reproduce", "lbbsp-table3", "--seeds", "1", "--json"]);
    let of = |name: &str, key: &str| {
        let record = records.iter().find(|record| record["predictor"] == name);
        record.and_then(|record| record[key].as_f64()).unwrap()
    };
    for key in ["rmse", "time_against_bsp"] {
        for other in ["memoryless", "ema", "arima", "rnn", "lstm"] {
            assert!(of("narx", key) < of(other, key), "{key}: {records:?}");
        }
    }
    assert!(of("narx", "rmse") < 0.75 * of("ema", "rmse"), "{records:?}");
    assert!(of("narx", "time_against_bsp") < 0.9 * of("ema", "time_against_bsp"), "{records:?}");
}
