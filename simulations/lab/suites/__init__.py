"""The laboratory's suites: one question a file, as data, and what to read off its runs. How runs are played and kept is
`lab_runs`' business, how they are told `lab_report`'s."""
