// Pages come before the names of the API, unless a name is the word itself.
var Scorer = {
  objNameMatch: 9,
  objPartialMatch: 1,
  objPrio: { 0: 0, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 20,
  partialTitle: 9,
  term: 5,
  partialTerm: 2,
};
