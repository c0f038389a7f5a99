//! `paceline reproduce`, end to end.

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
fn an_unknown_experiment_is_refused_with_the_known_ones() {
    let message = refused(&["reproduce", "zipline-table9"]);
    assert!(message.contains("zipline-table9") && message.contains("zipline-table3"), "{message}");
}

#[test]
fn the_predictor_that_sees_resources_is_best() {
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

#[test]
fn esync_keeps_all_workers_computing_and_sends_little() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let throughput = json(&["reproduce", "esync-fig4", "--json", "--out", out]);
    let of = |scheme: &str, key: &str| {
        let record = throughput.iter().find(|record| record["scheme"] == scheme);
        record.and_then(|record| record[key].as_f64()).unwrap()
    };
    assert!(of("esync", "bytes_per_second") < 0.5 * of("asp", "bytes_per_second"), "{throughput:?}");
    assert!(of("esync", "samples_per_second") > 33.0 * of("bsp", "samples_per_second"), "{throughput:?}");

    let shares = json(&["reproduce", "esync-fig5", "--json", "--out", out]);
    let slow_query = |record: &&serde_json::Value| record["question_milliseconds"] == 200.0;
    for record in shares.iter().filter(slow_query).filter(|record| record["scheme"] == "esync:mode=non-blocking") {
        let lost = record["querying"].as_f64().unwrap() + record["waiting"].as_f64().unwrap();
        assert!(lost < 0.05, "{record}");
    }
    assert!(folder.path().join("esync-fig5.svg").exists());
}
