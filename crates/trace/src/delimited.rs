//! Traces as comma-separated values.

use std::io::{Read, Write};

use super::{Trace, TraceColumns, TraceErrorKind};

pub(super) fn read(file: impl Read) -> Result<TraceColumns, TraceErrorKind> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
    let mut columns: Option<TraceColumns> = None;
    for (index, record) in reader.records().enumerate() {
        let cells: Vec<String> = record?.iter().map(String::from).collect();
        match &mut columns {
            Some(columns) => columns.push(index + 1, &cells)?,
            None if cells.iter().all(|cell| cell.trim().parse::<f64>().is_ok()) => {
                let mut unnamed = TraceColumns::new((1..=cells.len()).map(|column| column.to_string()).collect());
                unnamed.push(index + 1, &cells)?;
                columns = Some(unnamed);
            }
            None => columns = Some(TraceColumns::new(cells)),
        }
    }
    columns.ok_or(TraceErrorKind::Empty)
}

pub(super) fn write(trace: &Trace, out: impl Write) -> Result<(), TraceErrorKind> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(std::iter::once("step".to_string()).chain(trace.names()))?;
    for step in 0..trace.steps() {
        let cells = trace.workers().iter().map(|times| times.get(step).map_or(String::new(), f64::to_string));
        writer.write_record(std::iter::once(step.to_string()).chain(cells))?;
    }
    writer.flush()?;
    Ok(())
}
