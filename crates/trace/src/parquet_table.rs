//! Traces as Parquet tables.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Repetition, Type as Physical};
use parquet::data_type::DoubleType;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::Field;
use parquet::schema::types::Type;

use super::{Trace, TraceColumns, TraceErrorKind};

pub(super) fn read(file: File) -> Result<TraceColumns, TraceErrorKind> {
    let reader = SerializedFileReader::new(file)?;
    let schema = reader.metadata().file_metadata().schema();
    let mut columns = TraceColumns::new(schema.get_fields().iter().map(|field| field.name().to_string()).collect());
    for (index, row) in reader.get_row_iter(None)?.enumerate() {
        let row = row?;
        let cells: Vec<String> = row.get_column_iter().map(|(_, field)| cell_text(field)).collect();
        columns.push(index + 1, &cells)?;
    }
    Ok(columns)
}

fn cell_text(field: &Field) -> String {
    match field {
        Field::Null => String::new(),
        // The reader's own text of a double is rounded; this one is exact.
        Field::Double(seconds) => seconds.to_string(),
        Field::Float(seconds) => seconds.to_string(),
        other => other.to_string(),
    }
}

pub(super) fn write(trace: &Trace, out: impl Write + Send) -> Result<(), TraceErrorKind> {
    let column = |name: String| {
        let built = Type::primitive_type_builder(&name, Physical::DOUBLE).with_repetition(Repetition::OPTIONAL).build();
        built.map(Arc::new)
    };
    let fields = trace.names().map(column).collect::<Result<_, _>>()?;
    let schema = Arc::new(Type::group_type_builder("trace").with_fields(fields).build()?);
    let mut writer = SerializedFileWriter::new(out, schema, Arc::new(WriterProperties::builder().build()))?;
    let mut group = writer.next_row_group()?;
    let steps = trace.steps();
    for times in trace.workers() {
        let Some(mut column) = group.next_column()? else { break };
        let present: Vec<i16> = (0..steps).map(|step| i16::from(step < times.len())).collect();
        column.typed::<DoubleType>().write_batch(times, Some(&present), None)?;
        column.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}
