//! Colours. Every activity has a glyph of its own too, so that a terminal without colours shows the same.

use paceline_report::view::Activity;
use ratatui::style::{Color, Modifier, Style};

/// Whether there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Palette {
    /// The terminal's own sixteen, which go with its background.
    Colours,
    /// Bold, dim and reversed only.
    Monochrome,
}

impl Palette {
    /// That of this terminal: `NO_COLOR` and terminals that have no colours are heeded.
    pub fn of_environment() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_default();
        Palette::of(&variable("NO_COLOR"), &variable("TERM"))
    }

    fn of(no_color: &str, terminal: &str) -> Self {
        let has_none = ["vt1", "vt2", "dumb"].iter().any(|start| terminal.starts_with(start))
            || ["-m", "-mono"].iter().any(|end| terminal.ends_with(end));
        if !no_color.is_empty() || has_none { Palette::Monochrome } else { Palette::Colours }
    }

    fn in_colour(self, colour: Color, otherwise: Modifier) -> Style {
        match self {
            Palette::Colours => Style::new().fg(colour),
            Palette::Monochrome => Style::new().add_modifier(otherwise),
        }
    }

    /// Bad news.
    pub fn alarm(self) -> Style {
        self.in_colour(Color::Red, Modifier::empty()).add_modifier(Modifier::BOLD)
    }

    /// Good news.
    pub fn good(self) -> Style {
        self.in_colour(Color::Green, Modifier::empty()).add_modifier(Modifier::BOLD)
    }

    /// What is said beside the rest.
    pub fn soft(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Headings.
    pub fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Curves.
    pub fn curve(self) -> Style {
        self.in_colour(Color::Blue, Modifier::empty())
    }

    /// The worker that is chosen.
    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// A cell of the timeline.
    pub fn cell(self, activity: Activity) -> (char, Style) {
        let (glyph, colour) = match activity {
            Activity::Computing => ('█', Color::Blue),
            Activity::Waiting => ('·', Color::Yellow),
            Activity::Communicating => ('▒', Color::Cyan),
            Activity::Dropped => ('×', Color::Red),
            Activity::Absent => (' ', Color::DarkGray),
        };
        (glyph, self.in_colour(colour, Modifier::empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_left_out_where_they_are_not_wanted() {
        for (no_color, terminal) in [("1", "xterm"), ("", "vt100"), ("", "dumb"), ("", "linux-m")] {
            assert_eq!(Palette::of(no_color, terminal), Palette::Monochrome, "{no_color} {terminal}");
        }
        assert_eq!(Palette::of("", "xterm-256color"), Palette::Colours);
    }
}
