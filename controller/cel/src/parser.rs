//! Tokens to an expression; macros are taken apart on the way, as CEL's own parser does.
//!
//! The parser is our own since the one of the crate `cel` keeps macros such as `cel.bind` and the comprehensions with two
//! variables out of its syntax tree, has another depth at which it gives up, and brings an interpreter that nobody here needs.

use crate::ast::{ACCU, Element, Entry, Expr, Fold, Kind, Literal, op};
use crate::error::CompileError;
use crate::lexer::{Token, tokens};

/// How deep a rule may be in itself; CEL's own limit.
const MAX_DEPTH: usize = 250;
/// How deep the tree may be; what is deeper than this can't be evaluated on a small stack.
const MAX_TREE: usize = 300;

const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

struct Parser {
    tokens: Vec<(Token, usize)>,
    next: usize,
    depth: usize,
}

/// Parses an expression.
pub(crate) fn parse(text: &str) -> Result<Expr, CompileError> {
    let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0 };
    let expr = parser.expr()?;
    if *parser.peek() != Token::End {
        return Err(parser.error("the expression should end here"));
    }
    if tree_depth(&expr) > MAX_TREE {
        return Err(CompileError::TooDeep);
    }
    Ok(expr)
}

/// Without recursion: the tree may be too deep for that.
fn tree_depth(expr: &Expr) -> usize {
    let (mut deepest, mut next) = (0, vec![(expr, 1)]);
    while let Some((expr, depth)) = next.pop() {
        deepest = deepest.max(depth);
        if deepest > MAX_TREE {
            return deepest;
        }
        let mut push = |expr| next.push((expr, depth + 1));
        match &expr.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => push(operand),
            Kind::Call { target, args, .. } => {
                target.as_deref().into_iter().chain(args).for_each(push);
            }
            Kind::List(elements) => elements.iter().for_each(|element| push(&element.value)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                push(&entry.key);
                push(&entry.value);
            }),
            Kind::Fold(fold) => {
                [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result].into_iter().for_each(push);
            }
        }
    }
    deepest
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(token, _)| token)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).map_or(0, |(_, at)| *at)
    }

    fn error(&self, what: impl Into<String>) -> CompileError {
        CompileError::Syntax { at: self.at(), what: what.into() }
    }

    fn advance(&mut self) {
        self.next += 1;
    }

    fn take(&mut self, sign: &'static str) -> bool {
        let found = *self.peek() == Token::Sign(sign);
        if found {
            self.advance();
        }
        found
    }

    fn take_one(&mut self, signs: &[&'static str]) -> Option<&'static str> {
        signs.iter().copied().find(|sign| self.take(sign))
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), CompileError> {
        if self.take(sign) { Ok(()) } else { Err(self.error(format!("{sign:?} is missing here"))) }
    }

    fn ident(&mut self) -> Result<String, CompileError> {
        let Token::Ident(name) = self.peek() else { return Err(self.error("a name is missing here")) };
        let name = name.clone();
        self.advance();
        Ok(name)
    }

    fn expr(&mut self) -> Result<Expr, CompileError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(CompileError::TooDeep);
        }
        let at = self.at();
        let condition = self.logical(op::OR, "||")?;
        let expr = if self.take("?") {
            let yes = self.logical(op::OR, "||")?;
            self.expect(":")?;
            let no = self.expr()?;
            Expr::call(at, op::CONDITIONAL, vec![condition, yes, no])
        } else {
            condition
        };
        self.depth -= 1;
        Ok(expr)
    }

    /// Any number of terms; they are one call.
    fn logical(&mut self, function: &str, sign: &'static str) -> Result<Expr, CompileError> {
        let at = self.at();
        let mut terms = Vec::new();
        loop {
            terms.push(if sign == "||" { self.logical(op::AND, "&&")? } else { self.relation()? });
            if !self.take(sign) {
                break;
            }
        }
        match terms.pop() {
            Some(only) if terms.is_empty() => Ok(only),
            last => {
                terms.extend(last);
                Ok(Expr::call(at, function, terms))
            }
        }
    }

    fn relation(&mut self) -> Result<Expr, CompileError> {
        let mut left = self.sum()?;
        for _ in 0..MAX_DEPTH {
            let at = self.at();
            let Some(sign) = self.take_one(&["==", "!=", "<=", ">=", "<", ">", "in"]) else { return Ok(left) };
            let right = self.sum()?;
            let function = if sign == "in" { op::IN.to_owned() } else { format!("_{sign}_") };
            left = Expr::call(at, &function, vec![left, right]);
        }
        Err(CompileError::TooDeep)
    }

    fn sum(&mut self) -> Result<Expr, CompileError> {
        let mut left = self.product()?;
        for _ in 0..MAX_DEPTH {
            let at = self.at();
            let Some(sign) = self.take_one(&["+", "-"]) else { return Ok(left) };
            let right = self.product()?;
            left = Expr::call(at, &format!("_{sign}_"), vec![left, right]);
        }
        Err(CompileError::TooDeep)
    }

    fn product(&mut self) -> Result<Expr, CompileError> {
        let mut left = self.unary()?;
        for _ in 0..MAX_DEPTH {
            let at = self.at();
            let Some(sign) = self.take_one(&["*", "/", "%"]) else { return Ok(left) };
            let right = self.unary()?;
            left = Expr::call(at, &format!("_{sign}_"), vec![left, right]);
        }
        Err(CompileError::TooDeep)
    }

    fn unary(&mut self) -> Result<Expr, CompileError> {
        let at = self.at();
        for (sign, function) in [("!", op::NOT), ("-", op::NEGATE)] {
            let mut count = 0;
            // One minus belongs to the number behind it; several are operators.
            while *self.peek() == Token::Sign(sign) && (count > 0 || sign == "!" || !self.is_number_behind_minus()) {
                self.advance();
                count += 1;
            }
            if count > 0 {
                let operand = self.member()?;
                return Ok(if count % 2 == 0 { operand } else { Expr::call(at, function, vec![operand]) });
            }
        }
        self.member()
    }

    fn is_number_behind_minus(&self) -> bool {
        matches!(self.tokens.get(self.next + 1), Some((Token::Int(_) | Token::MinInt | Token::Double(_), _)))
    }

    fn member(&mut self) -> Result<Expr, CompileError> {
        let mut expr = self.primary()?;
        for _ in 0..MAX_DEPTH {
            let at = self.at();
            if self.take(".") {
                let optional = self.take("?");
                let field = self.ident()?;
                if !optional && self.take("(") {
                    let args = self.args(")")?;
                    expr = expand(at, &field, expr, args)?;
                } else {
                    expr = Expr { kind: Kind::Select { operand: Box::new(expr), field, optional, test: false }, at };
                }
            } else if self.take("[") {
                let function = if self.take("?") { op::OPT_INDEX } else { op::INDEX };
                let index = self.expr()?;
                self.expect("]")?;
                expr = Expr::call(at, function, vec![expr, index]);
            } else {
                return Ok(expr);
            }
        }
        Err(CompileError::TooDeep)
    }

    /// Up to the closing sign.
    fn args(&mut self, end: &'static str) -> Result<Vec<Expr>, CompileError> {
        let mut args = Vec::new();
        if self.take(end) {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if self.take(end) {
                return Ok(args);
            }
            self.expect(",")?;
        }
    }

    fn primary(&mut self) -> Result<Expr, CompileError> {
        let at = self.at();
        let token = self.peek().clone();
        let literal = |literal| Ok(Expr::literal(at, literal));
        match token {
            Token::Sign("(") => {
                self.advance();
                let expr = self.expr()?;
                self.expect(")")?;
                Ok(expr)
            }
            Token::Sign("[") => self.list(at),
            Token::Sign("{") => self.map(at),
            Token::Sign("-") => {
                self.advance();
                let token = self.peek().clone();
                self.advance();
                match token {
                    Token::Int(value) => literal(Literal::Int(-value)),
                    Token::MinInt => literal(Literal::Int(i64::MIN)),
                    Token::Double(value) => literal(Literal::Double(-value)),
                    _ => Err(self.error("a number is missing here")),
                }
            }
            Token::Sign(".") => {
                self.advance();
                self.named(at, ".")
            }
            Token::Ident(_) => self.named(at, ""),
            Token::MinInt => Err(self.error("this number is too large")),
            token => {
                let value = match token {
                    Token::Sign("true") => Literal::Bool(true),
                    Token::Sign("false") => Literal::Bool(false),
                    Token::Sign("null") => Literal::Null,
                    Token::Int(value) => Literal::Int(value),
                    Token::Uint(value) => Literal::Uint(value),
                    Token::Double(value) => Literal::Double(value),
                    Token::String(value) => Literal::String(value),
                    Token::Bytes(value) => Literal::Bytes(value),
                    _ => return Err(self.error("a value is missing here")),
                };
                self.advance();
                literal(value)
            }
        }
    }

    fn named(&mut self, at: usize, dot: &str) -> Result<Expr, CompileError> {
        let name = self.ident()?;
        if let Some(name) = self.message(&name) {
            return Err(CompileError::Undeclared { at, name });
        }
        if RESERVED.contains(&name.as_str()) {
            return Err(self.error(format!("{name:?} is a reserved word")));
        }
        let full = format!("{dot}{name}");
        if !self.take("(") {
            return Ok(Expr::ident(at, &full));
        }
        let mut args = self.args(")")?;
        if full != "has" || args.len() != 1 {
            return Ok(Expr::call(at, &full, args));
        }
        match args.pop().map(|arg| arg.kind) {
            Some(Kind::Select { operand, field, optional: false, test: false }) => {
                Ok(Expr { kind: Kind::Select { operand, field, optional: false, test: true }, at })
            }
            _ => Err(self.error("has() takes a field, such as a.b")),
        }
    }

    /// The name of a message that is made here: `a.b.C{`.
    fn message(&self, first: &str) -> Option<String> {
        let (mut next, mut name) = (self.next, first.to_owned());
        loop {
            match (self.tokens.get(next)?, self.tokens.get(next + 1)) {
                ((Token::Sign("{"), _), _) => return Some(name),
                ((Token::Sign("."), _), Some((Token::Ident(part), _))) => {
                    name = format!("{name}.{part}");
                    next += 2;
                }
                _ => return None,
            }
        }
    }

    /// Takes the end of a literal; an empty one may have a comma, too.
    fn ends(&mut self, end: &'static str, is_empty: bool) -> bool {
        let next = self.tokens.get(self.next + 1).map(|(token, _)| token);
        if is_empty && *self.peek() == Token::Sign(",") && next == Some(&Token::Sign(end)) {
            self.advance();
        }
        self.take(end)
    }

    fn list(&mut self, at: usize) -> Result<Expr, CompileError> {
        self.advance();
        let mut elements = Vec::new();
        loop {
            if self.ends("]", elements.is_empty()) {
                return Ok(Expr { kind: Kind::List(elements), at });
            }
            let optional = self.take("?");
            elements.push(Element { value: self.expr()?, optional });
            if !matches!(self.peek(), Token::Sign("]")) {
                self.expect(",")?;
            }
        }
    }

    fn map(&mut self, at: usize) -> Result<Expr, CompileError> {
        self.advance();
        let mut entries = Vec::new();
        loop {
            if self.ends("}", entries.is_empty()) {
                return Ok(Expr { kind: Kind::Map(entries), at });
            }
            let optional = self.take("?");
            let key = self.expr()?;
            self.expect(":")?;
            entries.push(Entry { key, value: self.expr()?, optional });
            if !matches!(self.peek(), Token::Sign("}")) {
                self.expect(",")?;
            }
        }
    }
}

fn variable(expr: &Expr) -> Result<String, CompileError> {
    match expr.as_ident() {
        Some("__result__") | None => {
            Err(CompileError::Syntax { at: expr.at, what: "a variable's name is missing here".to_owned() })
        }
        Some(name) => Ok(name.to_owned()),
    }
}

/// One value under a name.
fn bound(at: usize, name: String, value: Expr, body: Expr) -> Expr {
    let fold = Fold {
        range: Expr::list(at, Vec::new()),
        var: "#unused".to_owned(),
        var2: None,
        init: value,
        condition: Expr::literal(at, Literal::Bool(false)),
        step: Expr::ident(at, &name),
        accu: name,
        result: body,
    };
    Expr { kind: Kind::Fold(Box::new(fold)), at }
}

/// What a call of a member means: a macro's expansion, or the call.
fn expand(at: usize, function: &str, target: Expr, mut args: Vec<Expr>) -> Result<Expr, CompileError> {
    let accu = || Expr::ident(at, ACCU);
    let bool = |value| Expr::literal(at, Literal::Bool(value));
    let call = |function: &str, args| Expr::call(at, function, args);
    let vars = match (function, args.len()) {
        ("all" | "exists" | "exists_one" | "filter" | "map", 2) | ("map", 3) => 1,
        ("all" | "exists" | "exists_one" | "existsOne", 3)
        | ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => 2,
        ("bind", 3) if target.as_ident() == Some("cel") => {
            let (name, body) = (variable(&args[0])?, args.remove(2));
            return Ok(bound(at, name, args.remove(1), body));
        }
        ("optMap" | "optFlatMap", 2) => {
            let name = variable(&args[0])?;
            let value = Expr::member_call(at, "value", target.clone(), Vec::new());
            let body = bound(at, name, value, args.remove(1));
            let optional = |name: &str, args| Expr::member_call(at, name, Expr::ident(at, "optional"), args);
            let body = if function == "optMap" { optional("of", vec![body]) } else { body };
            let has_value = Expr::member_call(at, "hasValue", target, Vec::new());
            return Ok(call(op::CONDITIONAL, vec![has_value, body, optional("none", Vec::new())]));
        }
        ("sortBy", 2) => {
            let input = || Expr::ident(at, "@__sortBy_input__");
            let keys = expand(at, "map", input(), args)?;
            let sorted = Expr::member_call(at, op::SORT_BY, input(), vec![keys]);
            return Ok(bound(at, "@__sortBy_input__".to_owned(), target, sorted));
        }
        _ => return Ok(Expr::member_call(at, function, target, args)),
    };
    let var = variable(&args[0])?;
    let var2 = if vars == 2 { Some(variable(&args[1])?) } else { None };
    if var2.as_ref() == Some(&var) {
        return Err(CompileError::Syntax { at, what: format!("{var:?} is two variables here") });
    }
    let mut rest = args.split_off(vars);
    let body = rest.pop().unwrap_or_else(accu);
    let filtered = |step: Expr, filter: Option<Expr>| match filter {
        Some(filter) => call(op::CONDITIONAL, vec![filter, step, accu()]),
        None => step,
    };
    let (init, condition, step, result) = match function {
        "all" => (bool(true), call(op::NOT_STRICTLY_FALSE, vec![accu()]), call(op::AND, vec![accu(), body]), accu()),
        "exists" => {
            let open = call(op::NOT, vec![accu()]);
            (bool(false), call(op::NOT_STRICTLY_FALSE, vec![open]), call(op::OR, vec![accu(), body]), accu())
        }
        "exists_one" | "existsOne" => {
            let int = |value| Expr::literal(at, Literal::Int(value));
            let step = filtered(call(op::ADD, vec![accu(), int(1)]), Some(body));
            (int(0), bool(true), step, call(op::EQUALS, vec![accu(), int(1)]))
        }
        "transformMap" | "transformMapEntry" => {
            let mut args = vec![accu()];
            if function == "transformMap" {
                args.push(Expr::ident(at, &var));
            }
            args.push(body);
            let step = filtered(call(op::MAP_INSERT, args), rest.pop());
            (Expr { kind: Kind::Map(Vec::new()), at }, bool(true), step, accu())
        }
        _ => {
            let (element, filter) =
                if function == "filter" { (Expr::ident(at, &var), Some(body)) } else { (body, rest.pop()) };
            let step = filtered(call(op::ADD, vec![accu(), Expr::list(at, vec![element])]), filter);
            (Expr::list(at, Vec::new()), bool(true), step, accu())
        }
    };
    let fold = Fold { range: target, var, var2, accu: ACCU.to_owned(), init, condition, step, result };
    Ok(Expr { kind: Kind::Fold(Box::new(fold)), at })
}
