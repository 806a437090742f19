"""Function transforms and higher-order operators: bodies traced as subgraphs."""
